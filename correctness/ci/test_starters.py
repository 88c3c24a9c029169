"""`fp8lab init`, `keys` and `metrics` as a new user sees them: every starter runs and passes as it is written."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["FP8LAB_PROGRAM"]


def fp8lab(*arguments, folder="."):
    return subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=250)


def kinds():
    return [line.split()[0] for line in fp8lab("init", "--list").stdout.splitlines()]


class Starters(unittest.TestCase):
    def test_every_starter_runs_and_passes(self):
        self.assertGreaterEqual(len(kinds()), 5)
        for kind in kinds():
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                written = fp8lab("init", kind, folder=folder)
                self.assertEqual(written.returncode, 0, written.stderr)
                self.assertIn(f"fp8lab run {kind}.yaml", written.stdout)
                done = fp8lab("run", f"{kind}.yaml", "-o", "out", folder=folder)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                cells = json.loads(pathlib.Path(folder, "out/results.json").read_text(encoding="utf-8"))["cells"]
                self.assertTrue(all(cell["gates"] for cell in cells), "a starter gates every cell")

    def test_a_file_that_is_there_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            own = pathlib.Path(folder, "memory.yaml")
            own.write_text("mine", encoding="utf-8")
            refused = fp8lab("init", "memory", folder=folder)
            self.assertEqual((refused.returncode, own.read_text(encoding="utf-8")), (2, "mine"))
            self.assertIn("--force", refused.stderr)
            self.assertEqual(fp8lab("init", "memory", "--force", folder=folder).returncode, 0)
            self.assertIn("version: 1", own.read_text(encoding="utf-8"))
            self.assertEqual(fp8lab("init", "memory", "-o", "-").stdout, own.read_text(encoding="utf-8"))

    def test_a_mistyped_kind_is_corrected(self):
        wrong = fp8lab("init", "memroy")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("Did you mean `memory`?", wrong.stderr)
        self.assertIn("one of memory", fp8lab("init").stderr)
        self.assertEqual(fp8lab("init", "memory", "-o", "/nowhere/a.yaml").returncode, 2)


class Explanations(unittest.TestCase):
    def test_every_key_has_its_example_accepted(self):
        keys = json.loads(fp8lab("keys", "--json").stdout)
        self.assertGreater(len(keys), 50)
        for key in keys:
            self.assertTrue(key["meaning"] and key["allowed"], key)
        one = fp8lab("keys", "recipe").stdout
        self.assertIn("training.recipe\n", one)
        self.assertIn("allowed: bf16, delayed", one)
        self.assertIn("example: training: {recipe: delayed}", one)

    def test_every_metric_names_its_group_and_a_gate(self):
        metrics = json.loads(fp8lab("metrics", "--json").stdout)
        for metric in metrics:
            self.assertTrue(metric["metric"].startswith(metric["group"] + "."), metric)
        one = fp8lab("metrics", "time.step_ms").stdout
        self.assertIn("1.05 of before", one)
        self.assertIn("measure: [time]", one)

    def test_the_beginning_of_names_lists_them(self):
        lines = fp8lab("metrics", "traffic.").stdout.splitlines()
        self.assertGreater(len(lines), 3)
        self.assertTrue(all(line.startswith("traffic.") for line in lines[:-2]), lines)

    def test_a_mistyped_name_is_corrected(self):
        for command, word, meant in (("keys", "recipee", "recipe"), ("metrics", "memory.peek_bytes", "memory.peak_bytes")):
            wrong = fp8lab(command, word)
            self.assertEqual(wrong.returncode, 2)
            self.assertIn(meant, wrong.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
