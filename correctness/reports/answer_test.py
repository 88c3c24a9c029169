"""What a report says first: the answer, and a sentence for every scenario."""

import copy
import unittest
from typing import Any

import sample

import answer
import load
import units


def results(*cells: dict[str, Any], complete: bool = True) -> load.ResultSet:
    made = load.ResultSet("set", "results.json", complete=complete)
    made.cells = [load.Cell(copy.deepcopy(cell), made) for cell in cells]
    return made


def failed(cell: dict[str, Any], verdict: str, reason: str) -> dict[str, Any]:
    return {**copy.deepcopy(cell), "verdict": verdict, "reason": reason}


class Answer(unittest.TestCase):
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
        table = answer.findings_table([results(*cells)])
        self.assertEqual([row[3].text for row in table.rows], ["broken", "late", "leak"])
        self.assertEqual(table.rows[0][2].text, "after memory.retained_bytes equals 0: 7")

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

    def test_a_scenario_without_a_fix_shows_its_quantized_cell(self) -> None:
        def kept(quantized: bool, reshard: bool, peak: float) -> dict[str, Any]:
            cell = copy.deepcopy(sample.cell("sharded", fix=None))
            cell["config"] |= {
                "training.recipe": "delayed",
                "training.quantized_weights": quantized,
                "reshard_after_forward": reshard,
            }
            cell["arms"]["after"]["metrics"]["memory.peak_bytes"] = sample.metric(peak)
            return cell

        wanted = kept(True, True, 1.0)
        found = results(kept(False, False, 9.0), kept(True, False, 2.0), wanted, kept(False, True, 3.0))
        self.assertEqual(answer.shows_most(found.cells).record, wanted)

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

    def test_skipped_cells_are_counted_apart(self) -> None:
        skipped = failed(sample.cell("later", fix=None), "skipped", "no GPU")
        result = answer.answer([results(sample.cell(), skipped)], [])
        self.assertEqual(dict(result.figures)["cells as expected"], "1 of 1")
        self.assertEqual(dict(result.figures)["cells that did not run"], "1")
        self.assertEqual(answer.answer([results(skipped)], []).line, "No cell ran.")


class Finding(unittest.TestCase):
    def test_a_defect_has_both_sides(self) -> None:
        row = answer.findings_table([results(sample.cell())]).rows[0]
        self.assertEqual(row[2].text, "retained: 3.00 MiB before, 0 B after, both as predicted")
        self.assertEqual(row[3].link, "#cell/0/leak/device=meta,recipe=delayed")

    def test_a_scenario_of_the_users_own_has_its_figures(self) -> None:
        results_of_mine = results(sample.cell("mine", fix=None))
        self.assertIn(("gates that hold", "1 of 1"), answer.answer([results_of_mine], []).figures)
        row = answer.findings_table([results_of_mine]).rows[0]
        self.assertEqual(row[2].text, "peak 9.00 MiB; retained 0 B; all gather 6.00 MiB")
        self.assertEqual(row[4].text, units.ABSENT)

    def test_a_gate_on_time_has_its_interval(self) -> None:
        cell = sample.cell("timed", fix=None)
        cell["gates"][0] |= {
            "metric": "time.step_ms",
            "ratio": {"value": 1.02, "low": 0.99, "high": 1.05, "visible": 0.03, "pairs": 12},
        }
        row = answer.findings_table([results(cell)]).rows[0]
        self.assertEqual(row[2].text, "step: 1.020 times (0.990 to 1.050 over 12 pairs), gate held")

    def test_controls_count_false_alarms_and_what_was_missed(self) -> None:
        same, planted = sample.cell("same", fix=None), sample.cell("planted", fix=None)
        same["config"]["control"], planted["config"]["control"] = "same", "planted"
        rows = answer.controls_table([results(same, failed(planted, "fail", "the byte was not found"))]).rows
        self.assertEqual([row[3].text for row in rows], ["0 false alarms of 1", "1 missed of 1"])
        self.assertEqual([row[3].look for row in rows], ["good", "bad"])


if __name__ == "__main__":
    unittest.main()
