"""Shows that every defect of ci/mutants.toml can be planted, that the cells which should notice it exist, and how ci/mutants judges."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from scripts import ROOT, module

PROGRAM = os.environ["FP8LAB_PROGRAM"]


class Mutants(unittest.TestCase):
    def setUp(self):
        self.mutants = module("mutants")

    def test_every_defect_changes_exactly_one_place(self):
        for defect in self.mutants.defects():
            for edit in defect["edits"]:
                text = (ROOT / edit["file"]).read_text(encoding="utf-8")
                self.assertNotEqual(text, self.mutants.planted(text, edit, defect["name"]))
                # What judges the runtime stays as it is.
                judges = ("lib/harness/reference", "lib/harness/predict", "lib/harness/results")
                self.assertFalse(edit["file"].startswith(judges), defect["name"])

    def test_the_cells_that_should_notice_exist(self):
        listed = subprocess.run([PROGRAM, "run", *self.mutants.SCENARIOS, "--list"], cwd=ROOT, capture_output=True, text=True,
                                check=True).stdout.splitlines()
        for defect in self.mutants.defects():
            self.assertTrue(any(re.search(defect["cells"], cell) for cell in listed), defect["name"])

    def test_names_are_unique(self):
        names = [defect["name"] for defect in self.mutants.defects()]
        self.assertEqual(len(names), len(set(names)))

    def test_a_place_that_is_gone_is_named(self):
        edit = {"file": "a.cpp", "old": "two", "new": "three"}
        for text, count in (("one", 0), ("two two", 2)):
            with self.assertRaisesRegex(self.mutants.MutantError, f"'x': {count} places in a.cpp hold `two`"):
                self.mutants.planted(text, edit, "x")

    def test_a_planted_defect_can_be_taken_back(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder)
            (tree / "a.cpp").write_text("one two", encoding="utf-8")
            edits = [{"file": "a.cpp", "old": "one", "new": "1"}, {"file": "a.cpp", "old": "two", "new": "2"}]
            before = self.mutants.plant(tree, {"name": "x", "edits": edits})
            self.assertEqual("1 2", (tree / "a.cpp").read_text(encoding="utf-8"))
            self.assertEqual({tree / "a.cpp": "one two"}, before)

    def noticed_by(self, cells):
        """What ci/mutants makes of a run that ends with these cells."""
        copy = self.mutants.Copy.__new__(self.mutants.Copy)
        with tempfile.TemporaryDirectory() as folder:
            copy.tree, copy.build_folder, copy.scenarios = ROOT, pathlib.Path(folder), self.mutants.SCENARIOS
            program = copy.build_folder / "scenarios/fp8lab"
            program.parent.mkdir()
            text = json.dumps({"cells": cells})
            program.write_text(f"#!/bin/sh\nmkdir -p {folder}/out\ncat > {folder}/out/results.json <<'E'\n{text}\nE\n",
                               encoding="utf-8")
            program.chmod(0o755)
            return copy.noticed_by(".")

    def test_a_cell_that_fails_is_given_with_its_tensor(self):
        cells = [{"id": "a", "verdict": "pass", "arms": {}},
                 {"id": "b", "verdict": "fail", "arms": {"after": {"notes": ["reference: gradient w: sign"]}}}]
        self.assertEqual((None, 1), self.noticed_by(cells[:1]))
        self.assertEqual(("b", "gradient w: sign"), self.noticed_by(cells))

    def test_a_cell_that_came_out_as_expected_or_was_skipped_notices_nothing(self):
        cells = [{"id": verdict, "verdict": verdict, "arms": {}} for verdict in ("confirmed", "unaffected", "skipped")]
        self.assertEqual((None, 3), self.noticed_by(cells))
        self.assertEqual(("x", "crash"), self.noticed_by([*cells, {"id": "x", "verdict": "crash", "arms": {}}]))

    def test_a_run_of_skipped_cells_is_refused(self):
        cells = [{"id": "a", "verdict": "skipped", "reason": "no cuda here", "arms": {}}]
        with self.assertRaisesRegex(self.mutants.MutantError, "all 1 were skipped, so none can notice: no cuda here"):
            self.noticed_by(cells)


if __name__ == "__main__":
    unittest.main()
