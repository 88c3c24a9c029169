"""Shows that README.md is what its figures say, and that ci/readme tells when it is not."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["FP8LAB_PROGRAM"]


def readme(*arguments):
    return subprocess.run([ROOT / "ci/readme", "--program", PROGRAM, *arguments], capture_output=True, text=True, check=False)


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.results = pathlib.Path(cls.folder.name, "results.json")
        text = (ROOT / "ci/readme.toml").read_text(encoding="utf-8")
        cells = "|".join(sorted({re.escape(cell).replace(r"\-", "-") for cell in re.findall(r'(?m)^cell = "(.*)"$', text)}))
        done = subprocess.run([PROGRAM, "run", "scenarios", "-f", f"^({cells})$", "-o", cls.folder.name], cwd=ROOT,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.file = pathlib.Path(self.folder.name, "README.md")
        self.text = (ROOT / "README.md").read_text(encoding="utf-8")

    def checked(self, text, results=None):
        self.file.write_text(text, encoding="utf-8")
        return readme("--check", "--file", self.file, "--results", results or self.results)

    def changed(self, mutate):
        """The results with some cell changed, as a file."""
        results = json.loads(self.results.read_text(encoding="utf-8"))
        mutate({cell["id"]: cell for cell in results["cells"]})
        file = pathlib.Path(self.folder.name, "changed.json")
        file.write_text(json.dumps(results), encoding="utf-8")
        return file

    def test_ours_is_what_its_figures_say(self):
        done = self.checked(self.text)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_another_figure_is_stale_and_is_put_right(self):
        self.assertIn("589.5 MiB | 0 |", self.text)
        done = self.checked(self.text.replace("589.5 MiB | 0 |", "598.5 MiB | 0 |"))
        self.assertEqual(1, done.returncode)
        self.assertIn("589.5 MiB | 0 |\n", done.stdout)
        self.assertIn("README.md is stale; run ci/readme", done.stdout)
        self.assertEqual(0, readme("--file", self.file, "--results", self.results).returncode)
        self.assertEqual(self.text, self.file.read_text(encoding="utf-8"))

    def test_another_measurement_makes_it_stale(self):
        def grow(cells):
            cell = next(cell for name, cell in cells.items() if name.startswith("attention-saved-tensors/"))
            cell["arms"]["before"]["metrics"]["memory.retained_bytes"]["value"] += 2**20

        self.assertEqual(1, self.checked(self.text, self.changed(grow)).returncode)

    def test_percentages_are_the_same_on_every_machine(self):
        def grow(cells):
            cell = next(cell for name, cell in cells.items() if name.startswith("list-updates/"))
            cell["arms"]["before"]["metrics"]["parity.loss_gap"]["value"] *= 1.05

        self.assertRegex(self.text, r"1/3; [1-9]\.[0-9] % \| all; 0\.0[0-9]{2} %")
        self.assertEqual(1, self.checked(self.text, self.changed(grow)).returncode)

    def refused(self, text, results=None):
        done = self.checked(text, results)
        self.assertEqual(2, done.returncode, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr

    def test_mistakes_are_named(self):
        self.assertIn("the file needs one line", self.refused(self.text.replace("<!-- end of eight-bits -->", "")))

        def fail(cells):
            next(iter(cells.values()))["verdict"] = "not_fixed"

        def lose(cells):
            for cell in cells.values():
                for arm in cell["arms"].values():
                    arm["metrics"].pop("memory.weight_bytes", None)

        self.assertIn("came out not_fixed", self.refused(self.text, self.changed(fail)))
        self.assertIn("has no figure memory.weight_bytes", self.refused(self.text, self.changed(lose)))
        self.assertIn("/nowhere", self.refused(self.text, pathlib.Path("/nowhere")))


if __name__ == "__main__":
    unittest.main()
