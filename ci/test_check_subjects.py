#!/usr/bin/env python3
"""Which commit subjects check_subjects.py takes, and which it refuses."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import check_subjects

GOOD = ("comm: one barrier fewer at the end of a gather", "results, cli: the metric is read by its former name",
        "README: one page", "ci/readme: integers in digits", "comm/nccl: a check after a wait",
        "harness/results: exit 2 if output is lost", "CMakeLists: g++ 14")
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

    def test_a_merge_at_the_end_of_a_shallow_clone_is_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            full, shallow = pathlib.Path(folder, "full"), pathlib.Path(folder, "shallow")
            (full / "ci").mkdir(parents=True)
            shutil.copy(check_subjects.__file__, full / "ci")

            def git(*words):
                subprocess.run(["git", "-C", full, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True,
                               capture_output=True)

            def check():
                subprocess.run(["git", "clone", "--depth", "1", full.as_uri(), shallow], check=True,
                               capture_output=True)
                done = subprocess.run([sys.executable, "-B", shallow / "ci/check_subjects.py"], capture_output=True,
                                      text=True, check=False)
                shutil.rmtree(shallow)
                return done.returncode, done.stdout

            git("init", "-b", "main")
            git("add", ".")
            git("commit", "-m", "ci: a")
            git("branch", "side")
            git("commit", "--allow-empty", "-m", "ci: b")
            git("checkout", "side")
            git("commit", "--allow-empty", "-m", "ci: c")
            git("merge", "-m", "Merge 1 into 2", "main")
            self.assertEqual((0, "check_subjects: 0 errors\n"), check())
            git("commit", "--allow-empty", "-m", "Not a merge\n\nparent a\nparent b")
            code, output = check()
            self.assertEqual(1, code)
            self.assertIn("`Not a merge` is not of the form", output)


if __name__ == "__main__":
    unittest.main()
