"""ci/matrix as a CI system runs it, on small scenarios of its own."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["FP8LAB_PROGRAM"]
sys.path.insert(0, str(ROOT / "ci"))
import matrix_report  # noqa: E402

SCENARIO = """version: 1
name: {name}
title: A plain layer
device: meta
model: {{layer: linear, hidden: 64, seq: 32}}
training: {{steps: 1, recipe: bf16}}
matrix:
  model.batch: [1, 2]
measure: [memory]
expect:
  - {{metric: memory.retained_bytes, equals: 0}}
  - {{metric: memory.peak_bytes, {limit}}}
"""
EXPECT_LINE = SCENARIO.split("\n").index("  - {{metric: memory.peak_bytes, {limit}}}") + 1
TIERS = """[tiny]
title = "small cells"
scenarios = ["{folder}"]
devices = ["meta"]
limit_s = 600

[gpu]
title = "cells on a GPU"
scenarios = ["{folder}"]
devices = ["cuda"]
limit_s = 600
"""


class Workspace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "scenarios").mkdir()
        self.out = self.folder / "out"
        self.summary = self.folder / "summary"
        self.tiers = self.folder / "tiers.toml"
        self.tiers.write_text(TIERS.format(folder=self.folder / "scenarios"))
        self.add("plain")

    def add(self, name, limit="at_least: 1"):
        (self.folder / "scenarios" / f"{name}.yaml").write_text(SCENARIO.format(name=name, limit=limit))

    def matrix(self, *arguments, github=True, **environment):
        variables = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
        if github:
            variables |= {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(self.folder),
                          "GITHUB_STEP_SUMMARY": str(self.summary)}
        return subprocess.run(
            [ROOT / "ci/matrix", "--program", PROGRAM, "--tiers", self.tiers, "--out", self.out, *arguments],
            env=variables | environment, capture_output=True, text=True, check=False)

    def results(self):
        return json.loads((self.out / "results.json").read_text())

    def baseline(self, mutate):
        """Writes the results so far with a change to a file."""
        results = self.results()
        mutate(results["cells"])
        file = self.folder / "baseline.json"
        file.write_text(json.dumps(results))
        return file

    def junit(self):
        return ElementTree.parse(self.out / "junit.xml").getroot()

    def assert_totals(self, suites):
        """Checks that JUnit's counts are those of its cases, in every suite and overall."""
        for node in [suites, *suites.iter("testsuite")]:
            cases = list(node.iter("testcase"))
            self.assertEqual(int(node.get("tests")), len(cases))
            for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
                self.assertEqual(int(node.get(key)), sum(case.find(tag) is not None for case in cases))
        names = [(case.get("classname"), case.get("name")) for case in suites.iter("testcase")]
        self.assertEqual(len(names), len(set(names)), "GitLab drops a second case of one name")


class Runs(Workspace):
    def test_a_good_run_exits_zero_with_a_summary(self):
        done = self.matrix("tiny")
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertNotIn("::error", done.stdout)
        self.assertIn("ci/matrix tiny: 2 pass", self.summary.read_text())
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
        summary = self.summary.read_text()
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
        self.assertIn("nothing ran", self.summary.read_text())
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


class Against(Workspace):
    def setUp(self):
        super().setUp()
        self.assertEqual(0, self.matrix("tiny").returncode)
        self.summary.unlink()

    def test_its_own_output_is_no_regression_and_is_kept(self):
        done = self.matrix("tiny", "--against", str(self.out))
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("no regression in 2 cells", done.stdout)
        self.assertTrue((self.out / "baseline.json").exists())
        self.assertEqual(0, self.matrix("tiny", "--against", str(self.out)).returncode, "an older one's is replaced")
        (self.out / "baseline.json").write_text("mine")
        done = self.matrix("tiny", "--against", str(self.out))
        self.assertEqual(2, done.returncode)
        self.assertIn(f"ci/matrix: error: {self.out / 'baseline.json'}: the baseline would be kept there", done.stderr)
        self.assertEqual("mine", (self.out / "baseline.json").read_text())
        self.assertTrue((self.out / "results.json").exists())
        self.assert_totals(self.junit())
        self.assertIn("Against the baseline: 0 regressions", self.summary.read_text())

    def expect_regression(self, mutate, text):
        done = self.matrix("tiny", "--against", str(self.baseline(mutate)))
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn(text, done.stdout)
        self.assertIn(text, self.summary.read_text())
        self.assertIn("::error file=scenarios/plain.yaml,line=", done.stdout)
        self.assertIn("title=regression", done.stdout.replace("fp8lab%3A ", ""))
        suites = self.junit()
        self.assert_totals(suites)
        self.assertIn(text, suites.find(".//failure[@type='regression']").text)
        self.assertEqual(1, json.loads((self.out / "comparison.json").read_text())["regressions"])

    def test_one_byte_is_a_regression(self):
        def mutate(cells):
            cells[1]["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"] -= 1

        self.expect_regression(mutate, "after memory.peak_bytes: ")

    def test_a_cell_that_vanished_is_a_regression(self):
        self.expect_regression(lambda cells: cells.append({**cells[0], "id": "plain/model.batch=9"}), "vanished; it was pass")

    def test_an_allowed_cell_may_vanish(self):
        baseline = self.baseline(lambda cells: cells.append({**cells[0], "id": "plain/model.batch=9"}))
        self.assertEqual(0, self.matrix("tiny", "--against", str(baseline), "--allow", "batch=9").returncode)

    def accept(self, expires="2999-12-31", **changes):
        """Writes a table that accepts the peak of batch 2, with changes, and compares with a baseline of a byte less."""
        def mutate(cells):
            cells[1]["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"] -= 1

        peak = self.results()["cells"][1]["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"]
        entry = {"cells": '"batch=2"', "metric": '"memory.peak_bytes"', "at_most": str(int(peak)), "expires": expires,
                 "why": '"#1: a byte more"'} | changes
        file = self.folder / "accepted.toml"
        file.write_text("[[accept]]\n" + "".join(f"{key} = {value}\n" for key, value in entry.items() if value))
        return self.matrix("tiny", "--against", str(self.baseline(mutate)), "--accept", str(file))

    def test_an_accepted_increase_passes_and_is_reported(self):
        done = self.accept()
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("accepted until 2999-12-31: #1: a byte more", done.stdout)
        self.assertIn("Against the baseline: 0 regressions", self.summary.read_text())

    def test_an_entry_accepts_no_more_than_it_says(self):
        peak = self.results()["cells"][1]["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"]
        for changes in ({"at_most": str(int(peak) - 1)}, {"cells": '"batch=1"'}, {"metric": '"memory.setup_peak_bytes"'}):
            done = self.accept(**changes)
            self.assertEqual(1, done.returncode, done.stdout + done.stderr)
            self.assertIn("entry 1: accepts no regression of this comparison", done.stderr)

    def test_an_expired_entry_accepts_nothing_and_is_reported(self):
        done = self.accept(expires="2020-01-01")
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn("entry 1: expired on 2020-01-01", done.stderr)

    def test_a_mistake_in_an_entry_is_named(self):
        for changes, message in (({"why": ""}, "entry 1: `why` is missing"),
                                 ({"expires": '"soon"'}, "entry 1: `expires` cannot be 'soon'"),
                                 ({"at_most": "nan"}, "entry 1: `at_most` cannot be nan"),
                                 ({"at_most": ""}, "entry 1: give one of `at_most` and `at_least`"),
                                 ({"cells": '"("'}, "entry 1: `cells` is no regular expression"),
                                 ({"cell": '"x"'}, "entry 1: `cell` is not known")):
            done = self.accept(**changes)
            self.assertEqual(2, done.returncode, done.stdout + done.stderr)
            self.assertIn(message, done.stderr)

    def test_a_verdict_that_got_worse_keeps_the_runs_own_code(self):
        self.add("plain", "at_most: 1")
        done = self.matrix("tiny", "--against", str(self.out))
        self.assertEqual(1, done.returncode)
        self.assertIn("pass -> fail", done.stdout)

    def test_new_cells_and_better_figures_are_no_regressions(self):
        def mutate(cells):
            del cells[0]
            cells[0]["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"] += 1

        self.assertEqual(0, self.matrix("tiny", "--against", str(self.baseline(mutate))).returncode)

    def inconclusive(self):
        """A program that differs from fp8lab in the exit code of its runs."""
        program = self.folder / "fp8lab"
        program.write_text(f'#!/bin/sh\n{PROGRAM} "$@" && if [ "$1" = run ]; then exit 3; fi\n')
        program.chmod(0o755)
        return program

    def test_a_baseline_without_measured_cells_fails_with_the_reason(self):
        def mutate(cells):
            for cell in cells:
                cell |= {"verdict": "skipped", "reason": "the moon was full"}

        baseline = self.baseline(mutate)
        text = f"nothing in common with the baseline: no cell ran both here and in {baseline}"
        for program, alone in ((PROGRAM, ""), (self.inconclusive(), "; the run alone is inconclusive (exit 3)")):
            done = self.matrix("tiny", "--against", str(baseline), "--program", str(program))
            self.assertEqual(5, done.returncode, done.stdout + done.stderr)
            last = done.stdout.splitlines()[-1]
            self.assertTrue(last.startswith(f"ci/matrix: exit 5: {text}") and last.endswith(f"until there is one{alone}"), last)
            self.assertNotIn("nothing ran", done.stdout)
            self.assertIn(f"::error title=ci/matrix tiny::{text}", done.stdout)
            self.assertIn(text, self.summary.read_text())
            suites = self.junit()
            self.assert_totals(suites)
            self.assertEqual("nothing in common with the baseline", suites.find(".//error").text)

    def test_a_run_that_failed_keeps_its_code_whatever_it_is_compared_with(self):
        baseline = self.baseline(lambda cells: [cell.update(verdict="skipped", reason="a") for cell in cells])
        self.add("plain", "at_most: 1")
        done = self.matrix("tiny", "--against", str(baseline))
        self.assertEqual(1, done.returncode)
        self.assertEqual("ci/matrix: exit 1: a gate failed", done.stdout.splitlines()[-1])

    def test_regressions_of_an_inconclusive_run_are_named(self):
        baseline = self.baseline(lambda cells: cells.append({**cells[0], "id": "plain/model.batch=9"}))
        done = self.matrix("tiny", "--against", str(baseline), "--program", str(self.inconclusive()))
        self.assertEqual(1, done.returncode)
        self.assertEqual(f"ci/matrix: exit 1: regressions against {baseline}", done.stdout.splitlines()[-1])

    def test_files_that_are_no_baseline_are_refused_before_the_run(self):
        bad = self.folder / "bad.json"
        bad.write_text("{")
        for baseline in (self.folder / "nowhere", bad):
            done = self.matrix("tiny", "--against", str(baseline))
            self.assertEqual(2, done.returncode)
            self.assertIn(f"ci/matrix: error: --against: {baseline}", done.stderr)
            self.assertIn("give the results.json", done.stderr)
            self.assertNotIn("[1/2]", done.stdout)

    def test_an_invalid_allow_expression_is_refused_before_the_run(self):
        done = self.matrix("tiny", "--allow", "(", "--against", str(self.out))
        self.assertEqual(2, done.returncode)
        self.assertRegex(done.stderr, r"\Aci/matrix: error: --allow: `\(` is not a regular expression: .*\n\Z")
        self.assertNotIn("[1/2]", done.stdout)
        self.assertTrue((self.out / "results.json").exists())

    def test_a_comparison_that_fails_after_the_run_is_named_last(self):
        baseline = self.baseline(lambda cells: None)
        program = self.folder / "fp8lab"  # the baseline vanishes meanwhile
        program.write_text(f'#!/bin/sh\n[ "$1" = run ] && rm {baseline}\nexec {PROGRAM} "$@"\n')
        program.chmod(0o755)
        done = self.matrix("tiny", "--against", str(baseline), "--program", str(program))
        self.assertEqual(2, done.returncode)
        last = done.stdout.splitlines()[-1]
        self.assertTrue(last.startswith("ci/matrix: exit 2: bad configuration"), last)
        self.assertIn(str(baseline), last)
        self.assertEqual(1, done.stderr.count("fp8lab: error: "), done.stderr)
        self.assertIn(str(baseline), self.summary.read_text())


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
                self.assertTrue(error.startswith(f"ci/matrix: error: {path}: a run would replace it, and no run left it: "), error)
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
