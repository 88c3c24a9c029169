"""What `fp8lab watch` makes of figures, and how it attaches to a process; without PyTorch."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

WORKER = pathlib.Path(__file__).resolve().parents[2] / "lib/subjects"
sys.path.insert(0, str(WORKER))

from fp8lab_subjects.watching import attaching, growth, words  # noqa: E402


def numbered(sizes):
    return list(enumerate(sizes, 1))


class Growth(unittest.TestCase):
    def test_a_leak_has_its_rate_and_its_first_step(self):
        self.assertEqual(growth.growth(numbered([0, 0, 4096, 8192, 12288, 16384])), (4096, 3))

    def test_what_grows_from_the_first_step_on_began_there(self):
        self.assertEqual(growth.growth(numbered([2048, 4096, 6144, 8192])), (2048, 1))
        self.assertEqual(growth.growth(numbered([1 << 20, (1 << 20) + 2048, (1 << 20) + 4096, (1 << 20) + 6144])), (2048, 2))

    def test_a_leak_in_every_second_step_grows(self):
        rate, first = growth.growth(numbered([0, 4096, 4096, 8192, 8192, 12288, 12288, 16384]))
        self.assertEqual(first, 2)
        self.assertAlmostEqual(rate, 16384 / 7)

    def test_a_program_without_a_leak_does_not_grow(self):
        for name, sizes in {
            "constant": [1 << 20] * 8,
            "an optimizer's state, which the first step makes": [0, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20],
            "batches of different sizes": [4096, 8192, 2048, 16384, 4096, 8192, 2048, 16384],
            "a cache that was filled": [4096, 8192, 12288, 16384, *[20480] * 20],
            "numbers": [4, 8, 12, 16, 20, 24],
            "three steps": [4096, 8192, 12288],
            "nothing": [],
        }.items():
            with self.subTest(name):
                self.assertIsNone(growth.growth(numbered(sizes)))

    def test_a_leak_that_is_freed_once_and_goes_on_is_one_since_then(self):
        self.assertEqual(growth.growth(numbered([4096, 8192, 12288, 0, 4096, 8192, 12288])), (4096, 5))

    def test_growth_in_steps_that_were_not_searched_has_no_holder(self):
        series = growth.Series()
        for step in range(1, 5):
            series.add_total(step, 4096)
            series.add(step, {("parameter", "weight"): 4096})
        self.assertEqual(series.growing(), [])
        for step in range(5, 12):
            series.add_total(step, 4096 + 2048 * (step - 4))
        self.assertEqual(series.growing(), [(growth.UNSEARCHED, 2048, 5)])
        self.assertEqual(words.growing(*growth.UNSEARCHED, 2048, 5),
                         "memory grows by 2.0 KiB a step since step 5: too few steps were searched for its holder")

    def test_of_a_long_run_a_part_of_the_steps_shows_it_too(self):
        series = growth.Series()
        for step in range(1, 2000):
            series.add(step, {("variable", "history"): 2048 * step, ("parameter", "weight"): 4096})
        self.assertLessEqual(len(series.by_holder), growth.MOST_KEPT)
        self.assertEqual(max(series.by_holder), 1999)
        ((holder, rate, first),) = series.growing()
        self.assertEqual((holder, rate, first), (("variable", "history"), 2048, 1))


class Words(unittest.TestCase):
    def test_of_holders_the_largest_kind_comes_first_and_names_its_largest_label(self):
        sizes = {("parameter", "a"): 1024, ("parameter", "b"): 1024, ("context", "blocks.*"): 4096, ("variable", "x"): 0}
        self.assertEqual(words.by_kind(sizes), "kept for backward 4.0 KiB (most: blocks.* 4.0 KiB), parameters 2.0 KiB")

    def test_long_lists_of_names_are_cut(self):
        self.assertEqual(words.names(["a", "b"]), "a, b")
        self.assertEqual(words.names(["a", "b", "c", "d", "e"]), "a, b, c and 2 more")

    def test_weights_that_stay_have_the_reason(self):
        text = words.still(["a", "b", "norm"], 9, 2, {"b"}, {"norm": 1e-4})
        self.assertEqual(text, "3 of 9 weights have not moved in 2 steps: a, b (no gradient), "
                               "norm (16-bit values round steps of 0.0001 off)")

    def test_gradients_that_are_not_finite_name_the_first_step_only(self):
        self.assertEqual(words.non_finite({"a": 4, "b": 3, "c": 3}), "gradients are not finite since step 3: b, c")

    def test_where_a_process_stands(self):
        where = {"phase": "backward", "step": 3, "module": "", "seconds": 9.5, "line": "t.py:3 in f", "collective": "all_reduce"}
        self.assertEqual(words.place(where), "in backward of step 3, for 9.5 s, at t.py:3 in f, last collective: all_reduce")
        where |= {"phase": words.AFTER_STEP, "collective": ""}
        self.assertEqual(words.place(where), "after step 2, for 9.5 s, at t.py:3 in f")


class Attaching(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def python(self, code, **variables):
        folder = pathlib.Path(self.folder.name)
        (folder / "torch").mkdir(exist_ok=True)
        (folder / "torch/__init__.py").write_text("print('torch is imported')\n")
        (folder / "sitecustomize.py").write_text("print('the other sitecustomize ran')\n")
        path = os.pathsep.join(map(str, (WORKER / "fp8lab_subjects/watching/attach", WORKER, folder)))
        variables = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **variables}
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | variables, check=True)

    def test_another_sitecustomize_runs_too(self):
        self.assertEqual(self.python("print('program')").stdout, "the other sitecustomize ran\nprogram\n")

    def test_a_program_without_pytorch_is_left_alone(self):
        run = self.python("import sys; print([name for name in sys.modules if 'session' in name])", FP8LAB_WATCH_FOLDER="/x")
        self.assertTrue(run.stdout.endswith("[]\n"))
        self.assertEqual(run.stderr, "")

    def test_instruments_that_cannot_attach_leave_the_program_running(self):
        run = self.python("import torch; print('program')", FP8LAB_WATCH_FOLDER=self.folder.name)
        self.assertTrue(run.stdout.endswith("torch is imported\nprogram\n"))
        self.assertIn("fp8lab watch: cannot attach: ", run.stderr)  # this torch is empty

    def test_without_fp8lab_watch_the_two_lines_do_nothing(self):
        run = self.python("import fp8lab_subjects, json, sys; fp8lab_subjects.watch(1, 2); print(json.dumps('torch' in sys.modules))")
        self.assertFalse(json.loads(run.stdout.splitlines()[-1]))

    def test_steps(self):
        for text, expected in {"3:10": (3, 10), "3:": (3, None), ":10": (1, 10), "5": (5, 5), "": (1, None)}.items():
            self.assertEqual(attaching.steps_of(text), expected)


if __name__ == "__main__":
    unittest.main()
