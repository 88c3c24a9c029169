"""A folder with small scenarios in which tests run ci/matrix."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["FP8LAB_PROGRAM"]

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

    def add_many(self):
        """A scenario that runs until it is stopped."""
        text = SCENARIO.format(name="many", limit="at_least: 1")
        text = text.replace("model.batch: [1, 2]", f"model.batch: {[*range(1, 2001)]}")
        (self.folder / "scenarios/many.yaml").write_text(text)

    def command(self, *arguments):
        return [ROOT / "ci/matrix", "--program", PROGRAM, "--tiers", self.tiers, "--out", self.out, *arguments]

    def matrix(self, *arguments, github=True, **environment):
        variables = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
        if github:
            variables |= {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(self.folder),
                          "GITHUB_STEP_SUMMARY": str(self.summary)}
        return subprocess.run(
            self.command(*arguments), env=variables | environment, capture_output=True, text=True, check=False)

    def results(self):
        return json.loads((self.out / "results.json").read_text())

    def baseline(self, mutate):
        """Writes the results so far with a change to a file."""
        results = self.results()
        mutate(results["cells"])
        file = self.folder / "baseline.json"
        file.write_text(json.dumps(results))
        return file

    def summary_text(self):
        """The step summary, with underscores as they were before they were escaped: names of folders may have some."""
        return self.summary.read_text().replace("\\_", "_")

    def junit(self):
        return ElementTree.parse(self.out / "junit.xml").getroot()

    def assert_totals(self, suites):
        """Checks that JUnit's counts equal the numbers of its cases, in every suite and overall."""
        for node in [suites, *suites.iter("testsuite")]:
            cases = list(node.iter("testcase"))
            self.assertEqual(int(node.get("tests")), len(cases))
            for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
                self.assertEqual(int(node.get(key)), sum(case.find(tag) is not None for case in cases))
        names = [(case.get("classname"), case.get("name")) for case in suites.iter("testcase")]
        self.assertEqual(len(names), len(set(names)), "GitLab drops a second case of one name")
