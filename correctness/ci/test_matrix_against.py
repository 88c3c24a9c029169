"""ci/matrix --against: a run compared with the results of another."""

import gzip
import json
import os
import subprocess
import unittest

from matrix_workspace import SCENARIO, Workspace


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
        self.assertIn(f"fp8lab: error: {self.out / 'baseline.json'}: the baseline would be kept there", done.stderr)
        self.assertEqual("mine", (self.out / "baseline.json").read_text())
        self.assertTrue((self.out / "results.json").exists())
        self.assert_totals(self.junit())
        self.assertIn("Against the baseline: 0 regressions", self.summary_text())

    def test_a_packed_baseline_where_the_run_writes_is_compared_with(self):
        packed = self.folder / "packed"
        packed.mkdir()
        (packed / "results.json.gz").write_bytes(gzip.compress(self.less_by_a_byte().read_bytes()))
        for _ in range(2):
            done = self.matrix("tiny", "--against", str(packed), "--out", str(packed))
            self.assertEqual(1, done.returncode, done.stdout + done.stderr)
            self.assertIn("after memory.peak_bytes: ", done.stdout)
            (packed / "results.json").unlink()

    def test_cells_that_are_not_compared_are_counted_and_listed(self):
        def mutate(cells):
            cells[0]["config"]["model.seq"] = 16

        done = self.matrix("tiny", "--against", str(self.baseline(mutate)))
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        text = "1 cell redefined: figures and verdicts are not gated (plain/"
        self.assertIn(f"::warning title=fp8lab::against the baseline: {text}", done.stdout)
        self.assertRegex(self.summary_text(), r"\.\n\n.*\n.*\n\| `plain/.*` \| the scenario was model\.seq=16")
        baseline = self.baseline(lambda cells: None)
        self.add("plain", "at_least: 0")
        done = self.matrix("tiny", "--against", str(baseline))
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("2 cells with other gates: a better verdict counts as no better", self.summary_text())
        self.assertEqual(2, self.summary_text().count("its gates changed; was: "))

    def test_a_run_that_was_stopped_is_not_compared(self):
        baseline = self.baseline(lambda cells: None)
        self.add_many()
        with self.started("tiny", "--against", str(baseline)) as process:
            process.terminate()
            output, _ = process.communicate(timeout=60)
        self.assertEqual(143, process.returncode, output)
        text = f"the run was stopped before its last cell, so it is not compared with {baseline}"
        self.assertIn(text, output.splitlines())
        self.assertIn(text, self.summary_text())
        self.assertFalse((self.out / "comparison.json").exists())

    def started(self, *arguments):
        """ci/matrix, whose first cell has finished."""
        variables = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
        process = subprocess.Popen(self.command(*arguments), env=variables | {"GITHUB_STEP_SUMMARY": str(self.summary)},
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while not process.stdout.readline().startswith("["):
            self.assertIsNone(process.poll())
        return process

    def less_by_a_byte(self):
        """A baseline whose second cell has a byte less."""
        def mutate(cells):
            cells[1]["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"] -= 1

        return self.baseline(mutate)

    def test_one_byte_is_a_regression(self):
        text = "after memory.peak_bytes: "
        done = self.matrix("tiny", "--against", str(self.less_by_a_byte()))
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn(text, done.stdout)
        self.assertIn(text, self.summary_text())
        self.assertIn("::error file=scenarios/plain.yaml,line=", done.stdout)
        self.assertIn("title=regression", done.stdout.replace("fp8lab%3A ", ""))
        suites = self.junit()
        self.assert_totals(suites)
        self.assertIn(text, suites.find(".//failure[@type='regression']").text)
        self.assertEqual(1, json.loads((self.out / "comparison.json").read_text())["regressions"])

    def accept(self):
        """Writes a table that accepts the peak of batch 2, and compares with a baseline of a byte less."""
        peak = self.results()["cells"][1]["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"]
        file = self.folder / "accepted.toml"
        file.write_text(f'[[accept]]\ncells = "batch=2"\nmetric = "memory.peak_bytes"\nat_most = {int(peak)}\n'
                        'expires = 2999-12-31\nwhy = "#1: a byte more"\n')
        return self.matrix("tiny", "--against", str(self.less_by_a_byte()), "--accept", str(file))

    def test_an_accepted_increase_passes_and_is_reported(self):
        done = self.accept()
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("accepted until 2999-12-31: #1: a byte more", done.stdout)
        self.assertIn("Against the baseline: 0 regressions", self.summary_text())
        self.assertIn("1 changes accepted.\n\n| cell | accepted | until | why |", self.summary_text())
        self.assertRegex(self.summary_text(), r"(?m)^\| `plain/.*batch=2` \| after memory.* \| 2999-12-31 \| .*a byte more \|$")

    def test_an_expired_entry_does_not_hide_a_later_one(self):
        self.accept()
        file = self.folder / "accepted.toml"
        file.write_text(file.read_text().replace("2999-12-31", "2020-01-01") + file.read_text())
        done = self.matrix("tiny", "--against", str(self.folder / "baseline.json"), "--accept", str(file))
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("entry 1: expired on 2020-01-01", done.stderr)
        self.assertNotIn("entry 2", done.stderr)

    def test_a_cell_may_vanish_or_change_its_verdict_where_an_entry_accepts_that_kind(self):
        baseline = self.baseline(lambda cells: cells.append({**cells[0], "id": "plain/model.batch=9"}))
        file = self.folder / "accepted.toml"
        for kind, code in (("vanished", 0), ("verdict", 1)):
            file.write_text(f'[[accept]]\ncells = "=9"\nkind = "{kind}"\nexpires = 2999-12-31\nwhy = "#2: removed"\n')
            done = self.matrix("tiny", "--against", str(baseline), "--accept", str(file))
            self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        self.add("plain", "at_most: 1")
        file.write_text(file.read_text().replace("=9", "."))
        self.summary.unlink()
        self.matrix("tiny", "--against", str(self.baseline(lambda cells: None)), "--accept", str(file))
        self.assertIn("Against the baseline: 0 regressions", self.summary_text())

    def add_undecided(self):
        """A scenario whose only cell is inconclusive."""
        text = SCENARIO.format(name="undecided", limit="at_least: 1")
        text = text.replace("model.batch: [1, 2]", "model.batch: [3]").replace("[memory]", "[memory, time]")
        text = text.replace("memory.peak_bytes", "time.step_ms")
        (self.folder / "scenarios/undecided.yaml").write_text(text)

    def test_a_baseline_without_measured_cells_fails_with_the_reason(self):
        def mutate(cells):
            for cell in cells:
                cell |= {"verdict": "skipped", "reason": "the moon was full"}

        baseline = self.baseline(mutate)
        text = f"nothing in common with the baseline: no cell ran both here and in {baseline}"
        for alone in ("", "; the run itself: no cell failed, and not every cell is decided; 1 is inconclusive (exit 3)"):
            if alone:
                self.add_undecided()
            done = self.matrix("tiny", "--against", str(baseline))
            self.assertEqual(5, done.returncode, done.stdout + done.stderr)
            last = done.stdout.splitlines()[-1]
            self.assertTrue(last.startswith(f"exit 5: {text}") and last.endswith(f"until there is one{alone}"), last)
            self.assertNotIn("nothing ran", done.stdout)
            self.assertIn(f"::error title=fp8lab tiny::{text}", done.stdout)
            self.assertIn(text, self.summary_text())
            suites = self.junit()
            self.assert_totals(suites)
            self.assertEqual("nothing in common with the baseline", suites.find(".//error").text)

    def test_a_run_that_failed_keeps_its_code_whatever_it_is_compared_with(self):
        baseline = self.baseline(lambda cells: [cell.update(verdict="skipped", reason="a") for cell in cells])
        self.add("plain", "at_most: 1")
        done = self.matrix("tiny", "--against", str(baseline))
        self.assertEqual(1, done.returncode)
        self.assertEqual("exit 1: 2 of 2 cells did not come out as their scenarios expect", done.stdout.splitlines()[-1])

    def test_regressions_of_an_inconclusive_run_are_named(self):
        baseline = self.baseline(lambda cells: cells.append({**cells[0], "id": "plain/model.batch=9"}))
        self.add_undecided()
        done = self.matrix("tiny", "--against", str(baseline))
        self.assertEqual(1, done.returncode)
        self.assertEqual(f"exit 1: regressions against {baseline}", done.stdout.splitlines()[-1])

    def test_files_that_are_no_baseline_are_refused_before_the_run(self):
        bad = self.folder / "bad.json"
        bad.write_text("{")
        for baseline in (self.folder / "nowhere", bad):
            done = self.matrix("tiny", "--against", str(baseline))
            self.assertEqual(2, done.returncode)
            self.assertIn(f"error: --against: {baseline}", done.stderr)
            self.assertIn("give the results.json", done.stderr)
            self.assertNotIn("[1/2]", done.stdout)

    def test_an_invalid_allow_expression_is_refused_before_the_run(self):
        done = self.matrix("tiny", "--allow", "(", "--against", str(self.out))
        self.assertEqual(2, done.returncode)
        self.assertRegex(done.stderr, r"\Afp8lab: error: --allow: `\(` is not a regular expression of RE2's syntax: .*\n\Z")
        self.assertNotIn("[1/2]", done.stdout)
        self.assertTrue((self.out / "results.json").exists())

    def test_a_comparison_that_fails_after_the_run_is_named_last(self):
        baseline = self.baseline(lambda cells: None)
        self.add_many()
        with self.started("tiny", "--against", str(baseline)) as process:
            baseline.unlink()
            output, _ = process.communicate(timeout=120)
        self.assertEqual(2, process.returncode, output)
        last = output.splitlines()[-1]
        self.assertTrue(last.startswith(f"exit 2: {baseline}: no such file"), last)
        self.assertEqual(1, output.count("fp8lab: error: "), output)
        self.assertIn(str(baseline), self.summary_text())


if __name__ == "__main__":
    unittest.main()
