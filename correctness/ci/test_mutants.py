"""Shows that every defect of ci/mutants.toml can be planted, that the cells which should notice it exist, and how ci/mutants judges."""

import functools
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
        self.edit = self.mutants.mutant_edits

    def edits(self):
        """Each edit with its defect and the text of its file."""
        for defect in self.mutants.defects():
            for edit in defect["edits"]:
                yield defect, edit, (ROOT / edit["file"]).read_text(encoding="utf-8")

    def test_every_defect_changes_exactly_one_place(self):
        for defect, edit, text in self.edits():
            self.assertNotEqual(text, self.edit.planted(text, edit, defect["name"]))
            # What judges the runtime stays as it is.
            judges = ("lib/harness/reference", "lib/harness/predict", "lib/harness/results")
            self.assertFalse(edit["file"].startswith(judges), defect["name"])

    def renamed(self, text, begin, end, names):
        """The tokens of a text, in which local names between two characters have others."""
        tokens = self.edit.tokens_of(text)
        return [one.text + "_renamed" if begin <= one.begin < end and one.text in names and self.edit.is_local_use(tokens, i)
                else one.text for i, one in enumerate(tokens)]

    def test_every_edit_holds_if_all_local_names_of_its_function_change(self):
        count = 0
        for defect, edit, text in self.edits():
            if "function" not in edit:
                continue
            one = self.edit.place(text, edit, defect["name"])
            tokens = self.edit.tokens_of(text)
            begin, end = tokens[one.function.begin].begin, tokens[one.function.closes].end
            names = self.edit.local_names(text, one.function)
            planted = self.edit.planted(text, edit, defect["name"])
            expected = self.renamed(planted, begin, end + len(planted) - len(text), names)
            other = " ".join(self.renamed(text, begin, end, names))
            count += len(names)
            seen = [token.text for token in self.edit.tokens_of(self.edit.planted(other, edit, defect["name"]))]
            self.assertEqual(expected, seen, defect["name"])
        self.assertGreater(count, 1000)

    def test_the_cells_that_should_notice_exist(self):
        @functools.cache
        def listed(scenarios):
            return subprocess.run([PROGRAM, "run", *scenarios, "--list"], cwd=ROOT, capture_output=True, text=True,
                                  check=True).stdout.splitlines()

        for defect in self.mutants.defects():
            cells = listed(tuple(defect.get("scenarios", self.mutants.SCENARIOS)))
            self.assertTrue(any(re.search(defect["cells"], cell) for cell in cells), defect["name"])

    def test_names_are_unique(self):
        names = [defect["name"] for defect in self.mutants.defects()]
        self.assertEqual(len(names), len(set(names)))

    def test_a_place_that_is_gone_is_named(self):
        edit = {"file": "a.cpp", "old": "two", "new": "three"}
        for text, count in (("one", 0), ("two two", 2)):
            with self.assertRaisesRegex(self.edit.EditError, f"x: {count} places in a.cpp match `two`, and one should"):
                self.edit.planted(text, edit, "x")
        with self.assertRaisesRegex(self.edit.EditError, "x: a.cpp defines no function `g`"):
            self.edit.planted("int f() { return 1; }", {**edit, "function": "g"}, "x")
        with self.assertRaisesRegex(self.edit.EditError, "x: `new` has \\$b, which is neither in `old` nor in `bind`"):
            self.edit.planted("one two", {**edit, "new": "$b"}, "x")

    def test_an_edit_finds_its_function_and_its_local_names(self):
        text = ("struct S {\n  S(int a) : b{a}, c(2) { use(a); }\n  int f(int a) const { return a + 1; }\n};\n"
                "namespace n {\nconst int kTable[] = {1, 2};\nint S::f(int x, int y) { return  // why\n x +\n 1; }\n}\n")
        self.assertEqual(["S::S", "S::f", "S::f"], [one.name for one in self.edit.functions_of(text)])
        edit = {"file": "a.cpp", "function": "S::f", "bind": ["int $a, int $b"], "old": "return $a + 1", "new": "return $a + $b"}
        self.assertIn("int S::f(int x, int y) { return x + y; }", self.edit.planted(text, edit, "x"))

    def test_one_text_holds_several_defects(self):
        text = "int f(int a) { return a; }\nconstexpr int g(int b) {\n  return b;\n}\n"
        edits = [(number, self.edit.place(text, {"file": "a.cpp", "function": name, "old": "return $a", "new": new}, "x"))
                 for number, name, new in ((1, "f", "return $a + 1"), (2, "g", "return $a + 2"), (3, "f", "return $a + 3"))]
        switched = self.edit.switched(text, edits, "chosen")
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "a.cpp"
            source.write_text(switched + 'int chosen = 0;\nint main(int argc, char**) {\n  static_assert(g(1) == 1);\n'
                              "  chosen = argc - 1;\n  return 10 * f(1) + g(1);\n}\n", encoding="utf-8")
            subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-Wall", "-Werror", source, "-o", source.with_suffix("")], check=True)
            ends = [subprocess.run([source.with_suffix(""), *"123"[:count]], check=False).returncode for count in range(4)]
        self.assertEqual([11, 21, 13, 41], ends)
        lines = switched.splitlines()
        self.assertEqual(2, self.edit.number_at(switched, 1 + next(i for i, line in enumerate(lines) if "b + 2" in line)))
        self.assertIsNone(self.edit.number_at(switched, 1 + next(i for i, line in enumerate(lines) if line == "  return b;")))

    def noticed_by(self, cells):
        """What ci/mutants makes of runs that end with these cells."""
        copy = self.mutants.Copy(ROOT, "cpu")
        self.runs = []

        def results(chosen, scenarios, number):
            self.runs.append(chosen)
            return [cell for cell in cells if cell["id"] in chosen]

        copy.results = results
        return copy.noticed_by([cell["id"] for cell in cells])

    def test_a_cell_that_fails_is_given_with_its_tensor(self):
        cells = [{"id": "a", "verdict": "pass", "arms": {}},
                 {"id": "b", "verdict": "fail", "arms": {"after": {"notes": ["reference: gradient w: sign"]}}}]
        self.assertEqual((None, 1), self.noticed_by(cells[:1]))
        self.assertEqual(("b", "gradient w: sign"), self.noticed_by(cells))

    def test_a_cell_that_came_out_as_expected_or_was_skipped_notices_nothing(self):
        cells = [{"id": verdict, "verdict": verdict, "arms": {}} for verdict in ("confirmed", "unaffected", "skipped")]
        self.assertEqual((None, 2), self.noticed_by(cells))
        self.assertEqual(("x", "crash"), self.noticed_by([*cells, {"id": "x", "verdict": "crash", "arms": {}}]))

    def test_cells_run_until_one_notices(self):
        count = 40 * os.cpu_count()
        cells = [{"id": str(i), "verdict": "pass", "arms": {}} for i in range(count)]
        self.assertEqual((None, count), self.noticed_by(cells))
        self.assertEqual([str(i) for i in range(count)], sum(self.runs, []))
        self.noticed_by([{"id": "x", "verdict": "fail", "arms": {}}, *cells])
        self.assertEqual(os.cpu_count(), sum(map(len, self.runs)))

    def test_a_run_of_skipped_cells_is_refused(self):
        cells = [{"id": "a", "verdict": "skipped", "reason": "no cuda here", "arms": {}}]
        with self.assertRaisesRegex(self.edit.EditError, "all 1 cells were skipped, so none can notice: no cuda here"):
            self.noticed_by(cells)


if __name__ == "__main__":
    unittest.main()
