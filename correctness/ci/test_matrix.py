"""ci/matrix as a CI system runs it, on small scenarios of its own."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import unittest

from matrix_workspace import EXPECT_LINE, PROGRAM, ROOT, Workspace

sys.path.insert(0, str(ROOT / "ci"))
import matrix_report  # noqa: E402


class Runs(Workspace):
    def test_a_good_run_exits_zero_with_a_summary(self):
        done = self.matrix("tiny")
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertNotIn("::error", done.stdout)
        self.assertIn("ci/matrix tiny: 2 pass", self.summary_text())
        self.assert_totals(self.junit())

    def test_a_failure_is_annotated_at_its_line(self):
        self.add("greedy", "at_most: 1")
        done = self.matrix("tiny")
        self.assertEqual(1, done.returncode)
        errors = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
        self.assertEqual(1, len(errors), "two cells fail in one line")
        self.assertTrue(errors[0].startswith(f"::error file=scenarios/greedy.yaml,line={EXPECT_LINE},title=fp8lab%3A fail::"))
        self.assertIn("greedy/model.batch=1", errors[0])
        self.assertIn("and 1 more like it", errors[0])
        summary = self.summary_text()
        self.assertLess(summary.index("## Needs attention"), summary.index("Every figure"))
        suites = self.junit()
        self.assert_totals(suites)
        self.assertEqual("2", suites.get("failures"))

    def test_without_a_ci_system_failures_are_lines_as_compilers_write_them(self):
        self.add("greedy", "at_most: 1")
        done = self.matrix("tiny", github=False)
        self.assertNotIn("::error", done.stdout)
        self.assertRegex(done.stdout, rf"(?m)^\S*scenarios/greedy\.yaml:{EXPECT_LINE}: error: fail: greedy/")

    def test_a_missing_device_fails_with_the_reason(self):
        done = self.matrix("gpu")
        self.assertEqual(5, done.returncode)
        self.assertIn("exit 5: nothing ran: no cell is on cuda", done.stdout)
        self.assertIn("nothing ran", self.summary_text())
        self.assertIn("::error title=ci/matrix gpu::nothing ran", done.stdout)
        self.assertEqual("exit 5", self.junit().find(".//error").get("type"))

    def test_documents_of_an_older_run_are_ignored(self):
        self.assertEqual(0, self.matrix("tiny").returncode)
        self.assertEqual(5, self.matrix("gpu").returncode)
        self.assertFalse((self.out / "results.json").exists())

    def test_after_a_run_without_results_another_one_may_follow(self):
        for arguments in (["gpu"], ["tiny", "--jobs", "0"]):
            self.assertNotEqual(0, self.matrix(*arguments).returncode)
            self.assertEqual(["junit.xml"], [path.name for path in self.out.iterdir()])
        self.assertEqual(0, self.matrix("tiny").returncode)

    def test_skipped_cells_name_the_reason(self):
        path = self.folder / "scenarios/plain.yaml"
        skip = "skip_if:\n  - {when: {model.batch: [1, 2]}, reason: the moon is full}\n"
        path.write_text(path.read_text() + skip)
        done = self.matrix("tiny")
        self.assertEqual(5, done.returncode)
        self.assertIn("all 2 cells were skipped: the moon is full", done.stdout)

    def test_an_interrupted_run_is_resumed(self):
        self.assertEqual(0, self.matrix("tiny").returncode)
        done = self.matrix("tiny", "--resume")
        self.assertEqual(0, done.returncode)
        self.assertIn("2 of 2 cells are finished already", done.stdout)


class Signals(Workspace):
    """Sent to ci/matrix alone, in a session of its own: no terminal sends them to its children."""

    def stop(self, number, *arguments, root=ROOT):
        """Sends a signal once the child has printed `started`; returns the exit code and the output."""
        with subprocess.Popen([root / "ci/matrix", "tiny", "--tiers", self.tiers, "--out", self.out, *arguments],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              start_new_session=True) as process:
            try:
                lines = [process.stdout.readline()]
                while lines[-1] and lines[-1] != "started\n":
                    lines.append(process.stdout.readline())
                process.send_signal(number)
                output, _ = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            return process.returncode, "".join(lines) + output

    def test_a_build_ends_with_all_that_it_started(self):
        root = self.folder / "root"
        shutil.copytree(ROOT / "ci", root / "ci", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "reports").symlink_to(ROOT / "reports")
        # A compiler of the build holds the output open, so that its end is seen.
        (root / "ci/build").write_text("#!/usr/bin/env bash\n(echo started; exec sleep 60)\necho built\n")
        for number in (signal.SIGTERM, signal.SIGINT):
            code, output = self.stop(number, root=root)
            self.assertEqual(128 + number, code, output)
            self.assertEqual(f"started\nci/matrix: error: stopped by {number.name} during ci/build\n", output)

    def test_a_run_ends_in_order(self):
        program = self.folder / "fp8lab"
        program.write_text("#!/bin/sh\ntrap 'exit 130' INT\ntrap 'exit 143' TERM\necho started\n"
                           "while true; do sleep 0.1; done\n")
        program.chmod(0o755)
        for number in (signal.SIGTERM, signal.SIGINT):
            code, output = self.stop(number, "--program", program)
            self.assertEqual(128 + number, code, output)
            self.assertIn(f"ci/matrix: exit {128 + number}: stopped by a signal", output)


class Mistakes(Workspace):
    def refused(self, *arguments, **more):
        done = self.matrix(*arguments, **more)
        self.assertEqual(2, done.returncode, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stderr

    def test_usage(self):
        self.assertIn("did you mean tiny?", self.refused("tinny"))
        self.assertIn("which tier? There are tiny, gpu", self.refused())
        self.assertIn("--device cpu: not of this tier", self.refused("tiny", "--device", "cpu"))
        self.assertIn("not a program", self.refused("tiny", "--program", "/nowhere"))
        self.assertIn("--against: /nowhere: no such file", self.refused("tiny", "--program", "/nowhere", "--against", "/nowhere"),
                      "a missing baseline is reported before a program is sought or built")
        self.assertIn("cannot be written", self.refused("tiny", "--out", "/dev/null/out"))

    def test_files_that_no_run_wrote_are_kept(self):
        self.out.mkdir()
        foreign_suites = "<testsuites name='mine'><testsuite name='mine'/></testsuites>"
        for name, text in (("results.json", "mine"), ("junit.xml", "mine"), ("junit.xml", foreign_suites), ("summary.md", "mine"),
                           ("comparison.json", "mine"), ("timelines", "mine"), ("results.jsonl", '{"mine": 1}'),
                           ("results.json", '{"schema": "fp8lab.results/1"}')):
            path = self.out / name
            path.write_text(text)
            for arguments in (["tiny"], ["tiny", "--resume"], ["tiny", "--program", "/nowhere"]):
                error = self.refused(*arguments)
                self.assertTrue(error.startswith(f"ci/matrix: error: {path}: a run would replace it, and it does not come from a run: "), error)
                self.assertIn("give another directory with --out, or remove it", error)
                self.assertEqual(1, error.count("\n"), error)
            self.assertEqual({path: text}, {file: file.read_text() for file in self.out.iterdir()})
            path.unlink()
        self.assertEqual(0, self.matrix("tiny").returncode)
        self.assertEqual(0, self.matrix("tiny").returncode, "what a run left is replaced")

    def test_tables_of_tiers(self):
        good = self.tiers.read_text()
        for text, complaint in ((good.replace("devices", "device"), "`device` is not known; did you mean devices?"),
                                (good.replace('["meta"]', '"meta"'), "`devices` cannot be 'meta'"),
                                (good.replace("limit_s = 600", ""), "`limit_s` is missing"),
                                (good + "x = ", "not TOML"), ("a = 1", "`a` is not the table of a tier")):
            self.tiers.write_text(text)
            self.assertIn(f"{self.tiers}: ", self.refused("tiny"))
            self.assertIn(complaint, self.refused("tiny"))
        self.tiers.unlink()
        self.assertIn("cannot be read", self.refused("tiny"))

    def test_an_unwritable_summary_does_not_change_the_outcome(self):
        done = self.matrix("tiny", GITHUB_STEP_SUMMARY="/dev/full")
        self.assertEqual(0, done.returncode)
        self.assertIn("::warning title=ci/matrix::$GITHUB_STEP_SUMMARY (/dev/full) cannot be written", done.stdout)


class Reports(unittest.TestCase):
    def report(self, cells, folder, code=1):
        return matrix_report.Report(tier="t", code=code, meaning="m", seconds=1, limit_s=2, out=pathlib.Path(folder), root=ROOT,
                                    results={"cells": cells}, comparison=None, baseline=None, errors=[])

    def test_annotations_are_escaped(self):
        text = matrix_report.annotation("error", "a:b,c", "x%\ny", "f,1.yaml", 3)
        self.assertEqual("::error file=f%2C1.yaml,line=3,title=a%3Ab%2Cc::x%25%0Ay", text)

    def cell(self, number):
        return {"id": f"s/{number}", "scenario": f"s{number}", "file": f"{number}.yaml", "line": 2, "verdict": "fail",
                "reason": "too much " + "x" * 200, "gates": [], "seconds": 1.0}

    def test_an_undecided_control_is_no_finding(self):
        noise = {"pass": None, "observed": 1.0, "limit": 1.0}
        cells = [self.cell(number) | {"id": f"s/{end}", "verdict": "inconclusive", "gates": [noise]}
                 for number, end in enumerate(("control=same", "control=planted", "model.batch=1"))]
        found = matrix_report.findings(self.report(cells, "/nowhere"))
        self.assertEqual(["2.yaml"], [one.file for one in found])
        failed = matrix_report.findings(self.report([cells[0] | {"verdict": "fail"}], "/nowhere"))
        self.assertEqual(1, len(failed), "a false alarm is one")
        absent = matrix_report.findings(self.report([cells[0] | {"gates": [noise | {"observed": None}]}], "/nowhere"))
        self.assertEqual(1, len(absent), "an absent figure is one")

    def test_a_summary_is_limited_in_size_and_lists_failures_first(self):
        with tempfile.TemporaryDirectory() as folder:
            sections = "".join(f"## s{number}\n\n{'é' * 3000}\n\n" for number in range(300))
            attention = "## Needs attention\n\n" + "".join(f"### fail: `s/{number}`\n\n{'y' * 3000}\n\n" for number in range(300))
            pathlib.Path(folder, "summary.md").write_text(f"# fp8lab\n\n{attention}{sections}", encoding="utf-8")
            report = self.report([self.cell(number) for number in range(300)], folder)
            for budget in (20_000, 200_000, matrix_report.SUMMARY_BYTES):
                text = matrix_report.step_summary(report, budget)
                self.assertLessEqual(len(text.encode()), budget)
                self.assertGreater(len(text.encode()), budget * 0.6)
                self.assertRegex(text, r"\d+ more sections do not fit here")
                self.assertIn("fail: `s/0`", text)
            full = matrix_report.step_summary(report, 10**7)
            self.assertNotIn("do not fit", full)
            self.assertEqual(300, len(re.findall(r"(?m)^## s\d+$", full)))

    def test_the_step_summary_file_never_grows_beyond_its_limit(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "step")
            path.write_text("z" * (matrix_report.SUMMARY_BYTES - 10_000))
            pathlib.Path(folder, "summary.md").write_text("# fp8lab\n\n" + "## s\n\n" + "x" * 20_000)
            os.environ["GITHUB_STEP_SUMMARY"] = str(path)
            self.addCleanup(os.environ.pop, "GITHUB_STEP_SUMMARY")
            matrix_report.write_step_summary(self.report([], folder))
            self.assertLessEqual(path.stat().st_size, matrix_report.SUMMARY_BYTES)
            self.assertGreater(path.stat().st_size, matrix_report.SUMMARY_BYTES - 10_000)


class BundledTiers(unittest.TestCase):
    def test_every_tier_but_the_gpus_has_cells_and_smoke_the_fewest(self):
        tiers = tomllib.loads((ROOT / "ci/tiers.toml").read_text(encoding="utf-8"))
        self.assertEqual(["smoke", "ci", "full", "gpu"], list(tiers))
        self.assertEqual((60, 600), (tiers["smoke"]["limit_s"], tiers["ci"]["limit_s"]))
        counts = {}
        for name, tier in tiers.items():
            command = [PROGRAM, "run", *tier["scenarios"], "--list", "--json"]
            command += ["-d", ",".join(tier["devices"])] if "devices" in tier else []
            command += ["-f", tier["filter"]] if "filter" in tier else []
            command += ["--sample", str(tier["sample"])] if "sample" in tier else []
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            counts[name] = len(json.loads(done.stdout))
        self.assertLess(20, counts["smoke"])
        self.assertLess(counts["smoke"], counts["ci"] / 3)
        self.assertLessEqual(counts["ci"], counts["full"])


if __name__ == "__main__":
    unittest.main()
