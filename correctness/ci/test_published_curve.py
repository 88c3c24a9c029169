"""correctness/published_curve.py, with programs that take the place of fp8lab."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "published_curve.py"
# Losses that pass, in the results that the substitute program writes to the path that `-o` names.
RESULTS = {"cells": [{"arms": {"after": {"validation_losses": [{"step": 2000, "loss": 1.88}]}}}]}
WRITES = f"""#!{sys.executable}
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
if STATUS != 5:
    (out / "results.json").write_text(json.dumps({RESULTS!r}).replace("1.88", "LOSS"))
sys.exit(STATUS)
"""


class PublishedCurve(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "corpus.txt").write_text("To be, or not to be, that is the question.")

    def run_with(self, program: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-B", str(SCRIPT), "corpus.txt", "--program", program, "-o", "out", "--small"],
            cwd=self.folder, capture_output=True, text=True, check=False,
        )

    def stand_in(self, status: int, loss: str = "1.88") -> str:
        path = self.folder / "program"
        path.write_text(WRITES.replace("STATUS", str(status)).replace("LOSS", loss))
        path.chmod(0o755)
        return str(path)

    def test_losses_of_this_run_are_judged(self) -> None:
        self.assertEqual(self.run_with(self.stand_in(0)).returncode, 0)
        self.assertEqual(self.run_with(self.stand_in(1)).returncode, 0)  # another gate failed
        done = self.run_with(self.stand_in(0, "1.98"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("too far", done.stdout)

    def test_results_of_an_earlier_run_are_never_judged(self) -> None:
        (self.folder / "out").mkdir()
        for program in ("/bin/false", "/bin/true", "./missing", self.stand_in(5), self.stand_in(4)):
            (self.folder / "out/results.json").write_text(json.dumps(RESULTS))
            done = self.run_with(program)
            self.assertEqual(done.returncode, 2, f"{program}: {done.stdout}{done.stderr}")
            self.assertNotIn("published", done.stdout)


if __name__ == "__main__":
    unittest.main()
