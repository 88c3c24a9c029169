"""The shell steps of ci/action.yml, in a repository that has nothing but a scenario."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["FP8LAB_PROGRAM"]
# Every step of the file that runs a command, in order.
STEPS = re.findall(r"(?m)^ +run: '(.*)'$", (ROOT / "ci/action.yml").read_text(encoding="utf-8"))


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
        self.base = subprocess.run(["git", "rev-parse", "HEAD~1"], cwd=self.folder, check=True, capture_output=True,
                                   text=True).stdout.strip()

    def step(self, word, code=0, **environment):
        command, = [step for step in STEPS if f'/action" {word}' in step]
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", command], cwd=self.folder, check=False,
                              env=self.variables | environment, capture_output=True, text=True)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def test_a_run_is_compared_with_the_merge_base(self):
        self.step("baseline")
        self.assertEqual(f"commit={self.base}\n", (self.folder / "output").read_text())
        self.assertIn("this run is compared with nothing", self.step("run", COMMIT=self.base))
        self.step("keep", GITHUB_SHA=self.base)
        self.assertNotIn("::warning", self.step("run", COMMIT=self.base))
        self.assertIn("no results of the merge base other", self.step("run", COMMIT="other"))

        baseline = self.folder / ".fp8lab/baseline/results.json"
        results = json.loads(baseline.read_text())
        results["cells"][0]["arms"]["after"]["metrics"]["memory.peak_bytes"]["value"] -= 1
        baseline.write_text(json.dumps(results))
        self.assertIn("::error file=mine/memory.yaml", self.step("run", 1, COMMIT=self.base))
        self.assertIn("1 regressions", (self.folder / "summary").read_text())
        self.assertTrue((self.folder / ".fp8lab/out/junit.xml").exists())

    def test_every_step_is_known(self):
        self.assertEqual(["baseline", "run", "keep"], [re.search(r'/action" (\w+)', step)[1] for step in STEPS])


if __name__ == "__main__":
    unittest.main()
