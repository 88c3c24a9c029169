"""ci/control_rates counts the gates of control cells, of the real program and of a program that is wrong on purpose."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["FP8LAB_PROGRAM"]

SCENARIO = """version: 1
name: plain
title: A plain layer
device: cpu
ranks: 2
model: {layer: linear, hidden: 32, seq: 16}
training: {steps: 1, recipe: bf16}
measure: [memory, traffic]
expect:
  - {metric: memory.unexplained_bytes, equals: 0}
"""
# Misses what is planted, by making it an equal pair.
BLIND = """#!/bin/sh
for last; do :; done
"{program}" "$@"
status=$?
sed -i 's,"observed":1,"observed":0,; s,"pass":true,"pass":false,g' "$last/results.json"
exit $status
"""


def rates(folder, *arguments, program=PROGRAM, cwd=None):
    scenario = pathlib.Path(folder, "plain.yaml")
    scenario.write_text(SCENARIO, encoding="utf-8")
    command = [sys.executable, ROOT / "ci/control_rates", "--program", program, *arguments, scenario]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, cwd=cwd)


class ControlRates(unittest.TestCase):
    def test_counts_every_gate_of_every_run(self):
        with tempfile.TemporaryDirectory() as folder:
            done = rates(folder, "--runs", "3")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            lines = [line.split() for line in done.stdout.splitlines()]
            self.assertIn(["planted", "memory.peak_bytes", "3", "3", "0", "0"], lines)
            self.assertIn(["planted", "traffic.collectives", "3", "3", "0", "0"], lines)
            self.assertIn(["equal", "arms", "memory.peak_bytes", "3", "3", "0", "0"], lines)

    def test_what_is_missed_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            blind = pathlib.Path(folder, "blind")
            blind.write_text(BLIND.replace("{program}", PROGRAM), encoding="utf-8")
            blind.chmod(0o755)
            done = rates(folder, "--runs", "1", program=blind)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)

    def test_bad_usage_is_two(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(rates(folder, "--runs", "0").returncode, 2)
            self.assertEqual(rates(folder, "--at-once", "100000").returncode, 2)
            missing = rates(folder, program="/nowhere/fp8lab")
            self.assertEqual(missing.returncode, 2)
            self.assertIn("does not exist", missing.stderr)

    def test_a_run_that_fails_is_two_and_the_last(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder, "broken")
            broken.write_text(f'#!/bin/sh\necho >>{folder}/runs\nexec "{PROGRAM}" "$@" {folder}/nowhere.yaml\n',
                              encoding="utf-8")
            broken.chmod(0o755)
            done = rates(folder, "--runs", "20", program=broken)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertRegex(done.stderr, r"\Aci/control_rates: error: .* ended with status 2:\n(.|\n)*nowhere\.yaml")
            self.assertNotIn("Traceback", done.stderr)
            # Another may have begun before the first one's end was seen.
            self.assertLessEqual(pathlib.Path(folder, "runs").read_text(encoding="utf-8").count("\n"), 2)

    def test_a_program_may_be_given_from_the_working_directory(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "fp8lab").symlink_to(PROGRAM)
            done = rates(folder, "--runs", "1", program="./fp8lab", cwd=folder)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
