"""ci/matrix as a CI system runs it, on small scenarios of its own."""

import json
import os
import shutil
import signal
import subprocess
import tomllib
import unittest

from matrix_workspace import EXPECT_LINE, PROGRAM, ROOT, Workspace


class Runs(Workspace):
    def test_a_good_run_exits_zero_with_a_summary(self):
        done = self.matrix("tiny")
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertNotIn("::error", done.stdout)
        self.assertIn("fp8lab tiny: 2 pass", self.summary_text())
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
        self.assertIn("::error title=fp8lab gpu::nothing ran", done.stdout)
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
        self.assertIn("exit 5: nothing ran; 2 did not run: the moon is full", done.stdout)

    def test_an_interrupted_run_is_resumed(self):
        self.assertEqual(0, self.matrix("tiny").returncode)
        done = self.matrix("tiny", "--resume")
        self.assertEqual(0, done.returncode)
        self.assertIn("2 of 2 cells are finished already", done.stdout)


class Signals(Workspace):
    """Sent only to ci/matrix, in a session of its own: no terminal sends them to its children."""

    def stop(self, number, *arguments, root=ROOT, begin="started"):
        """Sends a signal once the child has printed a line that begins so; returns the exit code and the output."""
        with subprocess.Popen([root / "ci/matrix", "tiny", "--tiers", self.tiers, "--out", self.out, *arguments],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              start_new_session=True) as process:
            try:
                lines = [process.stdout.readline()]
                while lines[-1] and not lines[-1].startswith(begin):
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
        # A compiler of the build holds the output open, so that its end is seen.
        (root / "ci/build").write_text("#!/usr/bin/env bash\n(echo started; exec sleep 60)\necho built\n")
        for number in (signal.SIGTERM, signal.SIGINT):
            code, output = self.stop(number, root=root)
            self.assertEqual(128 + number, code, output)
            self.assertEqual(f"started\nci/matrix: error: stopped by {number.name} during ci/build\n", output)

    def test_a_run_ends_in_order(self):
        self.add_many()
        for number in (signal.SIGTERM, signal.SIGINT):
            code, output = self.stop(number, "--program", PROGRAM, begin="[")
            self.assertEqual(128 + number, code, output)
            self.assertTrue(output.splitlines()[-1].startswith(f"exit {128 + number}: interrupted"), output)
            self.assertFalse(self.results()["complete"])
            self.assertEqual(f"{128 + number}\n", (self.out / "run_exit_code").read_text())


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
        self.assertIn("cannot be made a directory", self.refused("tiny", "--out", "/dev/null/out"))

    def test_files_that_no_run_wrote_are_kept(self):
        self.out.mkdir()
        foreign_suites = "<testsuites name='mine'><testsuite name='mine'/></testsuites>"
        for name, text in (("results.json", "mine"), ("junit.xml", "mine"), ("junit.xml", foreign_suites), ("summary.md", "mine"),
                           ("comparison.json", "mine"), ("timelines", "mine"), ("results.jsonl", '{"mine": 1}'),
                           ("results.json", '{"schema": "fp8lab.results/1"}')):
            path = self.out / name
            path.write_text(text)
            for arguments in (["tiny"], ["tiny", "--resume"]):
                error = self.refused(*arguments)
                self.assertTrue(error.startswith(f"fp8lab: error: {path}: a run would replace it, and it does not come from a run: "), error)
                self.assertIn("give another directory with -o, or remove it", error)
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
        self.assertIn("::warning title=fp8lab::$GITHUB_STEP_SUMMARY (/dev/full) cannot be written", done.stdout)


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
