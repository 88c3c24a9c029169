"""`fp8lab report` as users have it: from a real run, over bad input, and where Python has nothing of what it needs."""

import json
import os
import pickle
import shutil
import subprocess
import unittest

import sample

PROGRAM = os.environ["FP8LAB_PROGRAM"]
SCENARIO = """version: 1
name: tiny
title: A tiny model
fix: release_attention_tensors
model: {layer: transformer_layer, form: gpt, layers: 2, hidden: 32, heads: 2, ffn: 64, seq: 32, batch: 2}
training: {steps: 3, optimizer: adam, recipe: delayed, fp8_attention: true, loss: mse}
matrix:
  device: [cpu, meta]
measure: [memory, parity]
expect:
  - {metric: memory.retained_bytes, arm: before, equals: predicted}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
"""


class Program(sample.Case):
    def run_program(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [PROGRAM, *arguments], capture_output=True, text=True, timeout=280, check=False, env=os.environ | environment
        )

    def report(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return self.run_program("report", *arguments, "-o", str(self.directory / "report"), **environment)

    def markdown(self) -> str:
        return (self.directory / "report" / "report.md").read_text()

    def test_a_run_becomes_a_report(self) -> None:
        (self.directory / "tiny.yaml").write_text(SCENARIO)
        out = self.directory / "out"
        ran = self.run_program("run", str(self.directory), "-o", str(out))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        ended = self.report(str(out), "--title=Mine", "--snapshots", "--traces", "--cells=device=cpu")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""), ended.stdout)
        self.assertIn("# Mine", self.markdown())
        self.assertIn("2 confirmed", self.markdown())

        record = json.loads((out / "results.json").read_text())["cells"][0]
        before = record["arms"]["before"]
        self.assertEqual(len(before["losses"]), 3)
        by_kind = {entry["of"] for entry in before["noise"]}
        self.assertEqual(by_kind, {"output", "gradient", "weight"})

        # Snapshots are the ledger's account once more: same peak, same bytes at the end.
        snapshots = sorted((self.directory / "report" / "snapshots").iterdir())
        self.assertEqual([path.name.rsplit(".", 2)[1] for path in snapshots], ["after", "before", "bf16"])
        live, peak = {}, 0
        document = pickle.loads(snapshots[1].read_bytes())
        for entry in document["device_traces"][0]:
            if entry["action"] == "alloc":
                live[entry["addr"]] = entry["size"]
                peak = max(peak, sum(live.values()))
            elif entry["action"] == "free_completed":
                del live[entry["addr"]]
        self.assertEqual(peak, before["metrics"]["memory.peak_bytes"]["value"])
        end = before["metrics"]["memory.end_of_step_bytes"]["value"]
        self.assertEqual(sum(live.values()), end)
        self.assertEqual(document["segments"][0]["requested_size"], end)
        self.assertEqual(len(list((self.directory / "report" / "traces").iterdir())), 1)

    def test_what_cannot_be_read_is_named_and_the_rest_is_shown(self) -> None:
        sample.write_set(self.directory / "good")
        cut = sample.write_set(self.directory / "cut") / "timelines" / "leak" / "device=meta,recipe=delayed.before.json"
        cut.write_text(cut.read_text()[:200])
        newer = sample.write_set(self.directory / "newer", schema="fp8lab.results/9")
        ended = self.report(str(self.directory / "good"), str(self.directory / "cut"), str(newer))
        self.assertEqual(ended.returncode, 2)
        lines = ended.stderr.splitlines()
        self.assertEqual(len(lines), 2, ended.stderr)
        self.assertIn("newer/results.json: `schema`: is fp8lab.results/9, newer than", lines[0])
        self.assertIn(
            "device=meta,recipe=delayed.before.json: timeline leak/device=meta,recipe=delayed, before: is cut off", lines[1]
        )
        text = self.markdown()
        self.assertIn("## What could not be read", text)
        self.assertIn("The arm before could not be read.", text)
        self.assertIn("good", text)

    def test_nothing_to_show_is_no_report(self) -> None:
        (self.directory / "results.json").write_text("")
        ended = self.report(str(self.directory / "results.json"))
        self.assertEqual(ended.returncode, 5)
        self.assertIn("results.json: is empty", ended.stderr)
        self.assertFalse((self.directory / "report").exists())

    def test_without_its_packages_it_says_what_to_install(self) -> None:
        sample.write_set(self.directory / "good")
        bare = self.directory / "python"
        bare.write_text("#!/bin/sh\nexit 1\n")
        bare.chmod(0o755)
        for python in (str(bare), str(self.directory / "none")):
            ended = self.report(str(self.directory / "good"), FP8LAB_PYTHON=python)
            self.assertEqual(ended.returncode, 2)
            self.assertIn("apt-get install python3-matplotlib python3-jinja2", ended.stderr)
            self.assertIn("FP8LAB_PYTHON", ended.stderr)

    def test_the_folder_can_be_elsewhere(self) -> None:
        sample.write_set(self.directory / "good")
        moved = self.directory / "moved"
        shutil.copytree(sample.ROOT / "reports", moved, ignore=shutil.ignore_patterns("__pycache__"))
        self.assertEqual(self.report(str(self.directory / "good"), FP8LAB_REPORTS=str(moved)).returncode, 0)
        ended = self.report(str(self.directory / "good"), FP8LAB_REPORTS=str(self.directory))
        self.assertEqual(ended.returncode, 2)
        self.assertIn("does not hold the report's program (__main__.py)", ended.stderr)

    def test_usage_is_checked_before_anything_is_read(self) -> None:
        self.assertEqual(self.run_program("report", "-o", "x").returncode, 2)
        self.assertEqual(self.run_program("report", "out").returncode, 2)
        ended = self.report(str(self.directory), "--cells=(")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("is not a regular expression", ended.stderr)

    def test_cells_that_match_nothing_are_told(self) -> None:
        sample.write_set(self.directory / "good")
        ended = self.report(str(self.directory / "good"), "--traces", "--cells=nothing")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("--cells: `nothing` matches no cell; no snapshots or traces were written", ended.stderr)
        self.assertIn("good", self.markdown())

    def test_help_says_what_files_are_for(self) -> None:
        self.assertIn("PyTorch's memory viewer", self.run_program("report", "--help").stdout)


if __name__ == "__main__":
    unittest.main()
