"""The first statement of a report: did every cell come out as expected."""

import copy
import unittest
from typing import Any

import sample

import answer
import bench
import findings
import load
import page
import tables


def results(*cells: dict[str, Any], complete: bool = True) -> load.ResultSet:
    made = load.ResultSet("set", "results.json", complete=complete)
    made.cells = [load.Cell(copy.deepcopy(cell), made) for cell in cells]
    return made


def failed(cell: dict[str, Any], verdict: str, reason: str) -> dict[str, Any]:
    return {**copy.deepcopy(cell), "verdict": verdict, "reason": reason}


class Answer(unittest.TestCase):
    def test_cells_of_which_nothing_is_expected_are_not_called_as_expected(self) -> None:
        def line(**changes: object) -> str:
            cell = sample.cell() | {"verdict": "pass", "reason": None} | changes
            return answer.answer([results(cell)], []).line

        self.assertTrue(line(gates=[]).startswith("All 1 cell ran to their end; their scenarios expect nothing of them"))
        self.assertTrue(line().startswith("All 1 cell that ran came out as their scenarios expect"))

    def test_all_good_is_one_line(self) -> None:
        result = answer.answer([results(*sample.cells())], [])
        self.assertEqual(result.look, "good")
        self.assertRegex(result.line, r"^All \d+ cells that ran came out as their scenarios expect\.$")

    def test_the_worst_cell_is_named_first(self) -> None:
        fine = sample.cell()
        cells = [
            fine,
            failed(sample.cell("late", fix=None), "inconclusive", "no figure"),
            failed(sample.cell("broken", fix=None), "fail", "after memory.retained_bytes equals 0: 7"),
        ]
        result = answer.answer([results(*cells)], [])
        self.assertEqual(result.look, "bad")
        line = "2 cells not as expected, first broken (fail): after memory.retained_bytes equals 0: 7."
        self.assertEqual(result.line, line)
        self.assertEqual(dict(result.figures)["cells as expected"], "1 of 3")
        table = findings.scenarios_table([results(*cells)])
        self.assertEqual({row[1].text for row in table.rows[:2]}, {"broken", "late"})
        self.assertEqual([row[4].text for row in table.rows if row[1].text == "broken"], ["after memory.retained_bytes equals 0: 7"])

    def test_a_leak_names_its_holder_and_a_frozen_weight_its_gate(self) -> None:
        for metric, reason, line in (
            ("memory.retained_bytes", "after memory.retained_bytes equals 0: 7 B", ", held by context of layers[0]: q."),
            ("parity.weights_moved", "after parity.weights_moved equals 1: 0.3", ": after parity.weights_moved equals 1: 0.3."),
        ):
            cell = failed(sample.cell("mine", fix=None), "fail", reason)
            cell["gates"][0] |= {"metric": metric, "pass": False}
            cell["arms"]["after"]["retained_by_holder"] = [{"holder": "context of layers[0]: q", "bytes": 7}]
            result = answer.answer([results(sample.cell("fine", fix=None), cell)], [])
            self.assertTrue(result.line.startswith("1 cell not as expected, first mine (fail): after "), result.line)
            self.assertTrue(result.line.endswith(line), result.line)

    def test_what_differs_most_between_two_sets_comes_first(self) -> None:
        def changed(metric: str, *values: float) -> str:
            sets = []
            for number, value in enumerate(values):
                cell = sample.cell("mine", fix=None)
                unit = "ms" if metric.startswith("time.") else "B"
                cell["arms"]["after"]["metrics"][metric] = sample.metric(value, unit=unit)
                # Times of equal code differ too, and do not come first.
                cell["arms"]["after"]["metrics"].setdefault("time.step_ms", sample.metric(10.0 + number, unit="ms"))
                made = results(cell)
                made.label, made.index = ("main", "branch")[number], number
                sets.append(made)
            return answer.answer(sets, []).line.removeprefix("All 2 cells that ran came out as their scenarios expect")

        gathered = changed("traffic.all_gather_bytes", 1024, 2048)
        self.assertIn("; branch against main: mine, after: traffic.all_gather_bytes is 2.00 KiB and was 1.00 KiB", gathered)
        self.assertIn("time.step_ms is 21 ms and was 10 ms, 2.10 times.", changed("time.step_ms", 10, 21))
        self.assertEqual(changed("time.step_ms", 10, 11), ".")

    def test_a_set_that_was_cut_off_is_not_all_good(self) -> None:
        result = answer.answer([results(*sample.cells(), complete=False)], [])
        self.assertEqual(result.look, "incomplete")
        self.assertIn("set stopped or was cut off", result.line)

    def test_a_fix_that_no_cell_shows_is_not_all_good(self) -> None:
        made = results(*sample.cells())
        made.unseen_fixes = ["leak: no cell shows what release fixes"]
        result = answer.answer([made], [])
        self.assertEqual(result.look, "incomplete")
        self.assertIn("; leak: no cell shows what release fixes", result.line)

    def test_fixes_that_no_cell_shows_are_named_next_to_their_number(self) -> None:
        cells = [sample.cell(), sample.cell("empty", fix="skip_empty_tensors") | {"verdict": "unaffected"}]
        result = answer.answer([results(*cells)], [])
        self.assertIn(("defects found before their fix, and gone after", "1 of 2"), result.figures)
        self.assertIn("no cell shows skip_empty_tensors", result.line)
        self.assertEqual(result.look, "incomplete")

    def test_skipped_cells_are_counted_apart(self) -> None:
        skipped = failed(sample.cell("later", fix=None), "skipped", "no GPU")
        result = answer.answer([results(sample.cell(), skipped)], [])
        self.assertEqual(dict(result.figures)["cells as expected"], "1 of 1")
        self.assertEqual(dict(result.figures)["cells that did not run"], "1 skipped (no GPU)")
        self.assertEqual(answer.answer([results(skipped)], []).line, "No cell ran.")
        of_library = [
            failed(skipped, "skipped", f"transformer_engine 2.1{n}.0 is not installed: there is no /x-2.1{n}.0")
            for n in (3, 6)
        ]
        figures = dict(answer.answer([results(skipped, *of_library)], []).figures)
        self.assertEqual(figures["cells that did not run"], "3 skipped (2: transformer_engine is not installed)")
        self.assertEqual(tables.skipped_text([]), "0")

    def test_an_undecided_control_fails_nothing(self) -> None:
        control = failed(sample.cell("mine", fix=None), "inconclusive", "the limit lies inside the interval")
        control |= {"id": "mine/control=same", "axes": {"control": "same"}}
        control["config"]["control"] = "same"
        control |= {"good": True, "undecided": True}
        found = results(sample.cell("mine", fix=None), control)
        result = answer.answer([found], [])
        line = "All 1 cell that ran came out as their scenarios expect; 1 control undecided."
        self.assertEqual((result.look, result.line), ("good", line))
        for rows in (tables.attention_table([found]).rows, tables.gates_table([found]).rows):
            self.assertEqual(rows, [])
        self.assertEqual(tables.counts(found.cells).look, "good")
        self.assertEqual(tables.verdict_text(found.cells[1]).look, "")
        (row,) = answer.controls_table([found]).rows
        self.assertEqual([entry.text for entry in row[1:]], ["equal arms", "0", "0 false alarms of 0", "1"])
        older = {key: value for key, value in control.items() if key not in ("good", "undecided")}
        self.assertTrue(results(older).cells[0].is_bad, "an older fp8lab wrote only the verdict")
        made = page.make("", [found], bench.Bench(), [], [])
        self.assertEqual(made.line, "2 cells of 1 result set; 1 as expected, 0 not, 1 undecided.")


class Controls(unittest.TestCase):
    def test_controls_count_false_alarms_and_what_was_missed(self) -> None:
        same, planted = sample.cell("same", fix=None), sample.cell("planted", fix=None)
        same["config"]["control"], planted["config"]["control"] = "same", "planted"
        rows = answer.controls_table([results(same, failed(planted, "fail", "the byte was not found"))]).rows
        self.assertEqual([row[3].text for row in rows], ["0 false alarms of 1", "1 missed of 1"])
        self.assertEqual([row[3].look for row in rows], ["good", "bad"])


if __name__ == "__main__":
    unittest.main()
