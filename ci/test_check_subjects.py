#!/usr/bin/env python3
"""Which commit subjects check_subjects.py takes, and which it refuses."""

import unittest

import check_subjects

GOOD = ("comm: one barrier fewer at the end of a gather", "results, cli: the metric is read by its former name",
        "README: one page", "ci/readme: integers in digits", "comm/nccl: a check after a wait",
        "harness/results: exit 2 where output is lost", "CMakeLists: g++ 14")
BAD = ("fix things", "style everything: reformat", "Comm: a barrier", "nowhere: a change", "comm : a barrier", "comm:a barrier",
       "comm: a barrier.", "comm: " + "x" * 120, "comm,ops: a barrier", "")


AREAS = {"comm", "comm/nccl", "results", "harness/results", "cli", "README", "ci/readme", "CMakeLists"}


class Subjects(unittest.TestCase):
    def test_good_ones_are_taken(self):
        for subject in GOOD:
            self.assertEqual([], check_subjects.faults(subject, AREAS), subject)

    def test_bad_ones_are_refused(self):
        for subject in BAD:
            self.assertTrue(check_subjects.faults(subject, AREAS), subject)


    def test_areas_are_files_and_folders_of_a_commit(self):
        areas = check_subjects.areas_of("HEAD")
        if not areas:
            self.skipTest("this tree is no clone")
        self.assertLessEqual({"lib/comm", "comm", "harness/results", "results", "README", "ci/readme", "CMakeLists", "cmake"},
                             areas)


if __name__ == "__main__":
    unittest.main()
