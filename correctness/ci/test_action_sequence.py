"""ci/action.yml as the CI of another repository uses it: its steps in order, with their conditions, over several commits."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from workflow_steps import Job

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["FP8LAB_PROGRAM"]
SCENARIO = """version: 1
name: mine
title: A plain layer
device: meta
model: {{layer: linear, hidden: {hidden}, seq: 32}}
training: {{steps: 1, recipe: bf16}}
{axes}measure: [memory]
expect:
  - {{metric: memory.peak_bytes, {limit}}}
"""
AUTHOR = ("-c", "user.name=A", "-c", "user.email=a@example.com")


class Repository(unittest.TestCase):
    """A repository with one scenario, its branch main, and what GitHub keeps for it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        top = pathlib.Path(folder.name)
        self.repository, self.caches, self.artifacts = top / "repository", top / "caches", top / "artifacts"
        for one in (self.repository / "mine", self.caches, self.artifacts):
            one.mkdir(parents=True)
        self.summary = top / "summary"
        self.action, self.variables = ROOT / "ci/action.yml", {"FP8LAB": PROGRAM}
        self.accept = ""
        self.git("init", "-q", "-b", "main")
        (self.repository / ".gitignore").write_text(".fp8lab\nstep-output\n")

    def git(self, *arguments):
        return subprocess.run(["git", *AUTHOR, *arguments], cwd=self.repository, check=True, capture_output=True,
                              text=True).stdout.strip()

    def write(self, hidden=64, limit="at_least: 1", axes=""):
        (self.repository / "mine/mine.yaml").write_text(SCENARIO.format(hidden=hidden, limit=limit, axes=axes))

    def commit(self):
        self.git("add", ".")
        self.git("commit", "-qm", "change", "--allow-empty")

    def job(self, ref, before=""):
        """Runs the action on the commit at hand, in a clean checkout as a runner has it."""
        shutil.rmtree(self.repository / ".fp8lab", ignore_errors=True)
        self.summary.unlink(missing_ok=True)
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "GIT_"))}
        sha = self.git("rev-parse", "HEAD")
        variables |= {"GITHUB_ACTIONS": "true", "GITHUB_ACTION_PATH": str(self.action.parent), "GITHUB_SHA": sha,
                      "GITHUB_WORKSPACE": str(self.repository), "GITHUB_STEP_SUMMARY": str(self.summary)} | self.variables
        github = {"ref": ref, "sha": sha, "base_ref": "main" if ref.startswith("refs/pull") else "",
                  "event": {"before": before, "repository": {"default_branch": "main"}}}
        inputs = {"scenarios": "mine", "devices": "meta", "accept": self.accept}
        return Job(self.action, self.repository, self.caches, self.artifacts, github, inputs, variables).run()

    def push(self):
        """A commit on main, as a merge is."""
        before = self.git("rev-parse", "-q", "--verify", "HEAD") if self.has_commits() else ""
        self.commit()
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        return self.job("refs/heads/main", before)

    def has_commits(self):
        return subprocess.run(["git", "rev-parse", "-q", "--verify", "HEAD"], cwd=self.repository, check=False,
                              stdout=subprocess.DEVNULL).returncode == 0

    def pull_request(self):
        """A commit that is not on main. The working tree then is the pull request's."""
        self.git("checkout", "-qB", "change", "main")
        self.commit()
        done = self.job("refs/pull/1/merge")
        self.git("checkout", "-q", "main")
        self.git("checkout", "-q", "change", "--", ".")
        return done

    def baselines(self):
        return [one for one in self.caches.iterdir() if "baseline" in one.name]

    def assert_code(self, code, job):
        self.assertEqual(code, job.code, job.log)

    def a_byte_less(self):
        """Makes every baseline a byte smaller, as if the commit at hand needed a byte more."""
        for folder in self.baselines():
            results = json.loads((folder / "results.json").read_text())
            results["cells"][0]["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"] -= 1
            (folder / "results.json").write_text(json.dumps(results))

    def test_first_run_redefinition_merge_empty_commit_and_accepted_increase(self):
        self.write()
        first = self.push()
        self.assert_code(0, first)
        self.assertIn("this run is compared with nothing", first.log)
        self.assertEqual(1, len(self.baselines()))

        self.write(hidden=128)
        change = self.pull_request()
        self.assert_code(0, change)
        self.assertIn("::warning title=fp8lab::against the baseline: 1 cell redefined: figures and verdicts are "
                      "not gated (mine)", change.log)
        self.assertIn("the scenario was model.hidden=64", self.summary.read_text())
        self.assertIn("memory.peak\\_bytes", self.summary.read_text().replace("memory.peak_bytes", "memory.peak\\_bytes"))
        self.assertEqual(1, len(self.baselines()), "a pull request leaves none")

        merge = self.push()
        self.assert_code(0, merge)
        self.assertEqual(2, len(self.baselines()))

        empty = self.push()
        self.assert_code(0, empty)
        self.assertIn("no regression in 1 cell", empty.log)
        self.assertNotIn("::warning", empty.log)

        self.a_byte_less()
        self.assert_code(1, self.pull_request())
        self.accept = "accepted.toml"
        (self.repository / self.accept).write_text(
            '[[accept]]\ncells = "mine"\nmetric = "memory.peak_bytes"\nat_most = 1e9\nexpires = 2999-12-31\nwhy = "#1: more"\n')
        accepted = self.pull_request()
        self.assert_code(0, accepted)
        self.assertIn("accepted until 2999-12-31: #1: more", accepted.log)
        self.assert_code(0, self.push())
        after = self.push()
        self.assert_code(0, after)
        self.assertIn("no regression in 1 cell", after.log)
        self.assertIn("entry 1: accepts no change of this comparison; remove it", after.log)

    def test_regression_that_reaches_main_fails_once(self):
        self.write()
        self.push()
        self.a_byte_less()
        worse = self.push()
        self.assert_code(1, worse)
        self.assertIn("::error file=mine/mine.yaml", worse.log)
        self.assertIn("1 regressions", self.summary.read_text())
        self.assertEqual(2, len(self.baselines()), "the baseline moves all the same")
        self.assert_code(0, self.push())

    def test_changed_axes_fail_once_and_an_entry_accepts_them(self):
        self.write()
        self.push()
        self.write(axes="matrix:\n  model.batch: [1, 2]\n")
        self.assert_code(1, self.pull_request())
        self.accept = "accepted.toml"
        (self.repository / self.accept).write_text(
            '[[accept]]\ncells = "."\nkind = "vanished"\nexpires = 2999-12-31\nwhy = "#2: another axis"\n')
        self.assert_code(0, self.pull_request())
        self.assert_code(0, self.push())
        self.assert_code(0, self.push())

    def test_changed_gates_pass_with_a_warning_that_an_entry_silences(self):
        self.write()
        self.push()
        self.write(hidden=32, limit="at_least: 2")
        change = self.pull_request()
        self.assert_code(0, change)
        self.assertIn("1 cell with other gates: a better verdict counts as no better (mine)", change.log)
        self.accept = "accepted.toml"
        (self.repository / self.accept).write_text("".join(
            f'[[accept]]\ncells = "."\nkind = "{kind}"\nexpires = 2999-12-31\nwhy = "#3: smaller"\n'
            for kind in ("redefined", "gates")))
        reviewed = self.pull_request()
        self.assert_code(0, reviewed)
        self.assertNotIn("::warning", reviewed.log)
        self.assertIn("2 changes accepted", self.summary.read_text())

    def test_a_run_whose_own_gates_fail_is_no_baseline(self):
        self.write()
        self.push()
        self.write(limit="at_most: 1")
        failed = self.push()
        self.assert_code(1, failed)
        self.assertIn("the baseline stays: the run itself did not pass (exit code: 1)", failed.log)
        self.assertEqual(1, len(self.baselines()))
        self.write(limit="at_least: 2")
        fixed = self.push()
        self.assert_code(0, fixed)
        self.assertIn("compared with the newest there are", fixed.log)
        self.assertEqual(2, len(self.baselines()))

    def test_a_run_that_is_refused_is_no_baseline(self):
        (self.repository / "mine/mine.yaml").write_text("version: 1\nname: mine\n")
        self.assert_code(2, self.push())
        self.assertEqual([], self.baselines())

    def test_artifacts_hold_no_timelines(self):
        self.write()
        self.push()
        artifact, = self.artifacts.iterdir()
        for name in ("results.json", "junit.xml"):
            self.assertTrue((artifact / name).exists())
        self.assertTrue((self.repository / ".fp8lab/out/timelines").exists())
        self.assertFalse((artifact / "timelines").exists())


class BuiltProgram(Repository):
    """The program of the action's own checkout, whose build is replaced by a copy of the program under test."""

    def setUp(self):
        super().setUp()
        root = self.repository.parent / "action"
        (root / "ci/cmake").mkdir(parents=True)
        (root / "lib").mkdir()
        for name in ("action", "action.yml"):
            shutil.copy(ROOT / "ci" / name, root / "ci" / name)
        self.built = root / "built"
        programs = {"ci/setup": "exit 0", "ci/build": f"echo built >> {self.built}",
                 "bin/cmake": f'mkdir -p "${{@: -1}}/bin" && ln -s {PROGRAM} "${{@: -1}}/bin/fp8lab"'}
        (root / "bin").mkdir()
        for name, line in programs.items():
            (root / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
            (root / name).chmod(0o755)
        self.source = root / "lib/a.cpp"
        self.source.write_text("one\n")
        self.action = root / "ci/action.yml"
        self.variables = {"PATH": f"{root}/bin:{os.environ['PATH']}", "RUNNER_OS": "Linux", "RUNNER_ARCH": "X64"}

    def builds(self):
        return len(self.built.read_text().splitlines())

    def test_a_second_use_takes_the_program_from_the_cache_and_other_sources_are_built(self):
        self.write(limit="at_most: 1")
        self.assert_code(1, self.push())
        self.assertEqual(1, self.builds(), "kept although the run failed")
        self.write()
        self.assert_code(0, self.push())
        self.assertEqual(1, self.builds())
        self.source.write_text("two\n")
        self.assert_code(0, self.push())
        self.assertEqual(2, self.builds())
        self.variables["CXX"] = "false"
        self.assert_code(0, self.push())
        self.assertEqual(3, self.builds(), "another compiler")


def load_tests(loader, _tests, _pattern):
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(Repository))
    suite.addTest(BuiltProgram("test_a_second_use_takes_the_program_from_the_cache_and_other_sources_are_built"))
    return suite


if __name__ == "__main__":
    unittest.main()
