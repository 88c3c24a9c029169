"""What ci/matrix reads of a run, on documents that no program wrote: each is named with its path, or shown escaped.

`test_matrix_readers.py ROUNDS` tries as many mutations.
"""

import copy
import json
import os
import pathlib
import random
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "ci"))
import matrix_report  # noqa: E402

ROUNDS = 600
ODD = [None, True, 0, -1, 0.5, 1e308, 10**400, float("nan"), "", "x\n::error::y", "\x1b[31m", "\ud800", "`|`<b>", [],
       {}, [None], "/etc/passwd", "../x", "x" * 3000]
CELL = {"id": "a/b=1", "scenario": "a", "file": "scenarios/a.yaml", "line": 2, "verdict": "fail", "reason": "why",
        "seconds": 0.5, "gates": [{"pass": False, "line": 7}, {"pass": None}]}
GOOD = CELL | {"id": "a/b=2", "verdict": "pass", "reason": None}
RESULTS = {"schema": "fp8lab.results/1", "complete": True, "cells": [CELL, GOOD]}
CHANGE = {"kind": "verdict", "id": "a/b=1", "file": "scenarios/a.yaml", "line": 7, "text": "pass -> fail",
          "regression": True}
COMPARISON = {"cells_compared": 2, "regressions": 1, "better": 0, "changes": [CHANGE]}


def changed(document, chance):
    document = copy.deepcopy(document)
    found = []
    left = [document]
    while left:
        at = left.pop()
        for key in list(at) if isinstance(at, dict) else range(len(at)):
            found.append((at, key))
            if isinstance(at[key], (dict, list)):
                left.append(at[key])
    at, key = chance.choice(found)
    if chance.randrange(5) == 0:
        del at[key]
    else:
        at[key] = copy.deepcopy(chance.choice(ODD))
    text = json.dumps(document)
    return text[: chance.randrange(len(text))] if chance.randrange(10) == 0 else text


class Readers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        before = os.environ.get("GITHUB_ACTIONS")
        os.environ["GITHUB_ACTIONS"] = "true"
        self.addCleanup(lambda: os.environ.pop("GITHUB_ACTIONS") if before is None
                        else os.environ.update(GITHUB_ACTIONS=before))

    def read(self, name, text, shape):
        (self.folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
        document, fault = matrix_report.read(self.folder / name, shape)
        self.assertNotEqual(document is None, fault == "")
        if fault:
            self.assertTrue(fault.startswith(f"{self.folder / name}: "), fault)
            self.assertIn("; run it again", fault)
        return document

    def show(self, results, comparison):
        report = matrix_report.Report(tier="t", code=1, meaning="m", seconds=1, limit_s=2, out=self.folder, root=ROOT,
                                      results=results, comparison=comparison, baseline=None, errors=[])
        lines = [matrix_report.annotation("error", one.title, one.message, one.file, one.line)
                 for one in matrix_report.findings(report)]
        for line in lines:
            self.assertNotRegex(line, r"[\x00-\x1f]")
        summary = matrix_report.step_summary(report, 100000)
        self.assertNotRegex(summary, r"[\x00-\x09\x0b-\x1f]|\n\s*::")
        xml = ElementTree.tostring(matrix_report.suite_of(report), encoding="unicode")
        ElementTree.fromstring(xml)

    def test_mutated_documents_are_named_or_shown(self):
        chance = random.Random(8)
        read = 0
        for number in range(ROUNDS):
            of_results = number % 2 == 0
            text = changed(RESULTS if of_results else COMPARISON, chance)
            with self.subTest(text):
                if of_results:
                    document = self.read("results.json", text, matrix_report.RESULTS)
                else:
                    document = self.read("comparison.json", text, matrix_report.COMPARISON)
                if document is not None:
                    read += 1
                    self.show(document if of_results else RESULTS, COMPARISON if of_results else document)
        print(f"{ROUNDS} mutations: {ROUNDS - read} refused, {read} read", file=sys.stderr)
        self.assertTrue(0 < read < ROUNDS)

    def test_mistakes_are_named_by_their_path(self):
        for document, fault in (
            (RESULTS | {"cells": [CELL | {"seconds": "x"}]},
             "`cells[0].seconds` must be a finite number, but is the text \"x\""),
            (RESULTS | {"cells": {}}, "`cells` must be a list, but is an object of 0 members"),
            (RESULTS | {"cells": [{key: CELL[key] for key in CELL if key != "id"}]}, "`cells[0].id` is missing"),
        ):
            (self.folder / "r.json").write_text(json.dumps(document))
            found, output = matrix_report.read(self.folder / "r.json", matrix_report.RESULTS)
            self.assertIsNone(found)
            self.assertEqual(f"{self.folder / 'r.json'}: {fault}; run it again with the fp8lab of this checkout", output)
        (self.folder / "r.json").write_text("{")
        _, output = matrix_report.read(self.folder / "r.json", {})
        self.assertTrue(output.startswith(f"{self.folder / 'r.json'}: line 1: is not JSON"), output)
        self.assertEqual((None, ""), matrix_report.read(self.folder / "none.json", {}))

    def test_a_broken_junit_is_replaced(self):
        (self.folder / "junit.xml").write_text("<testsuites")
        report = matrix_report.Report(tier="t", code=1, meaning="m", seconds=1, limit_s=2, out=self.folder, root=ROOT,
                                      results=RESULTS, comparison=COMPARISON, baseline=None, errors=[])
        matrix_report.write_junit(report)
        self.assertEqual("1", ElementTree.parse(self.folder / "junit.xml").getroot().get("failures"))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        ROUNDS = int(sys.argv.pop(1))
    unittest.main()
