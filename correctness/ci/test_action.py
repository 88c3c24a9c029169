"""The shell steps of ci/action.yml, in a repository that has nothing but a scenario, and the baseline of .gitlab-ci.yml."""

import os
import pathlib
import re
import subprocess
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["FP8LAB_PROGRAM"]
# Every step of the file that runs a command, in order.
ACTION = (ROOT / "ci/action.yml").read_text(encoding="utf-8")
STEPS = re.findall(r"(?m)^ +run: '(.*)'$", ACTION)


class Action(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.variables = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "GIT_"))}
        self.variables |= {
            "GITHUB_ACTIONS": "true", "GITHUB_ACTION_PATH": str(ROOT / "ci"), "GITHUB_WORKSPACE": str(self.folder),
            "GITHUB_OUTPUT": str(self.folder / "output"), "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "FP8LAB": PROGRAM, "SCENARIOS": "mine", "DEVICES": "meta", "ACCEPT": "", "TARGET": "main"}
        (self.folder / "mine").mkdir()
        subprocess.run([PROGRAM, "init", "memory", "-o", "mine/memory.yaml"], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL)
        author = ("-c", "user.name=A", "-c", "user.email=a@example.com")
        for arguments in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "one"),
                          ("update-ref", "refs/remotes/origin/main", "HEAD"), (*author, "commit", "-qm", "two", "--allow-empty")):
            subprocess.run(["git", *arguments], cwd=self.folder, check=True)
        self.base, self.head = self.git("rev-parse", "HEAD~1"), self.git("rev-parse", "HEAD")

    def git(self, *arguments):
        return subprocess.run(["git", *arguments], cwd=self.folder, check=True, capture_output=True, text=True).stdout.strip()

    def step(self, word, code=0, **environment):
        command, = [step for step in STEPS if f'/action" {word}' in step]
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=self.folder, check=False,
                              env=self.variables | environment, capture_output=True, text=True)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def outputs(self, **environment):
        (self.folder / "output").unlink(missing_ok=True)
        self.step("baseline", **environment)
        return dict(line.split("=", 1) for line in (self.folder / "output").read_text().splitlines())

    def test_a_push_is_compared_with_the_commit_before_it(self):
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        none = "0" * 40
        for before in ("", none):
            self.assertEqual(self.base, self.outputs(BEFORE=before)["commit"])
        tree = self.git("rev-parse", "HEAD^{tree}")
        other = self.git("-c", "user.name=A", "-c", "user.email=a@example.com", "commit-tree", tree, "-m", "other")
        self.assertEqual(other, self.outputs(BEFORE=other)["commit"], "a push may hold several commits")
        self.git("checkout", "-q", self.base)
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")
        self.assertEqual("", self.outputs(BEFORE=none)["commit"], "the first commit has none before it")

    def test_a_shallow_clone_has_no_merge_base_and_is_compared_with_the_newest_results(self):
        (self.folder / ".git/shallow").write_text(self.head + "\n")
        for ref in (self.head, self.base):
            self.git("update-ref", "refs/remotes/origin/main", ref)
            self.assertEqual("", self.outputs(BEFORE="0" * 40)["commit"])
        self.step("run", COMMIT="")
        self.step("keep", GITHUB_SHA=self.base)
        self.assertIn("::warning title=fp8lab::the merge base is not in this clone", self.step("run", COMMIT=""))

    def test_uses_in_one_workflow_have_names_and_keys_of_their_own(self):
        used = re.findall(r"(?m)^ +(?:key|restore-keys|name): (.*)$", ACTION)
        self.assertEqual(6, len(used))
        for value in used:  # actions/cache refuses a comma, and a second artifact of one name is refused
            self.assertNotIn("inputs.", value)
            self.assertIn("steps.baseline.outputs.", value)
        found = [self.outputs(DEVICES=devices, SCENARIOS=scenarios) for devices in ("cpu,meta", "meta")
                 for scenarios in ("scenarios", "some/more, of them")]
        self.assertEqual(1, len({one["program"] for one in found}), "they share the program")
        for name in ("key", "slug"):
            self.assertEqual(4, len({one[name] for one in found}))
            for one in found:
                self.assertRegex(one[name], r"\A[\w-]+\Z")
        self.assertTrue(found[0]["key"].startswith("fp8lab-baseline-cpu-meta-"), found[0])

    def test_a_second_use_in_a_job_starts_without_the_files_of_the_first(self):
        self.step("run", COMMIT=self.base)
        self.step("keep", GITHUB_SHA=self.base)
        self.outputs()
        self.assertFalse((self.folder / ".fp8lab").exists())

    def test_every_step_is_known(self):
        self.assertEqual(["baseline", "program", "run", "keep"], [re.search(r'/action" (\w+)', step)[1] for step in STEPS])


class GitLab(unittest.TestCase):
    def test_the_default_branch_keeps_results_that_passed_by_themselves_and_its_exit_code(self):
        text = (ROOT / ".gitlab-ci.yml").read_text(encoding="utf-8")
        script = textwrap.dedent(re.search(r"- \|\n((?: {6}.*\n)+)", text[text.index("\nscenarios-and-baseline:"):])[1])
        for own, code, kept in ((0, 0, True), (0, 1, True), (1, 1, False), (None, 2, False)):
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                (folder / "ci").mkdir()
                (folder / "ci/action").symlink_to(ROOT / "ci/action")
                record = f"echo {own} >out/results/run_exit_code" if own is not None else "true"
                (folder / "ci/matrix").write_text(f"#!/bin/sh\nmkdir -p out/results\necho '{{}}' >out/results/results.json\n"
                                                  f"{record}\nexit {code}\n")
                (folder / "ci/matrix").chmod(0o755)
                done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=name, check=False, capture_output=True,
                                      env=os.environ | {"DEVICE": "meta"})
                self.assertEqual(code, done.returncode, done.stderr)
                self.assertEqual(kept, (folder / "baseline/results.json").exists(), (own, code))
        self.assertRegex(text, r"(?m)^      unprotect: true\n      when: always$", "GitLab drops the cache of a failed job")

    def test_a_job_uses_what_there_is_and_warns_without_a_baseline(self):
        text = (ROOT / ".gitlab-ci.yml").read_text(encoding="utf-8")
        self.assertEqual(1, text.count("- *against\n"), "both jobs use it")
        script = textwrap.dedent(re.search(r"- &against \|\n((?: {6}.*\n)+)", text)[1]) + 'echo "arguments: $*"\n'
        with tempfile.TemporaryDirectory() as name:
            for file, words in ((None, ""), ("ci/accepted.toml", ""), ("baseline/results.json", " --accept ci/accepted.toml")):
                if file:
                    (pathlib.Path(name) / file).parent.mkdir()
                    (pathlib.Path(name) / file).touch()
                done = subprocess.run(["sh", "-eu", "-c", script], cwd=name, check=True, capture_output=True, text=True)
                against = "--against baseline/results.json" if words else ""
                self.assertIn(f"arguments: {against}{words}\n", done.stdout)
                self.assertEqual(not words, "warning: there are no results of the default branch" in done.stdout)


if __name__ == "__main__":
    unittest.main()
