"""What a report says first: the answer, and a sentence for every scenario."""

import copy
import unittest
from typing import Any

import sample

import answer
import bench
import load
import page
import tables
import units

GATE = {"text": "", "arm": "after", "metric": "", "pass": True, "observed": None, "limit": None}


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

    def test_a_fix_that_no_cell_shows_is_not_all_good(self) -> None:
        made = results(*sample.cells())
        made.unseen_fixes = ["leak: no cell shows what release fixes"]
        result = answer.answer([made], [])
        self.assertEqual(result.look, "incomplete")
        self.assertIn("; leak: no cell shows what release fixes", result.line)

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
        control["gates"][0] |= {"pass": None, "observed": 1.0, "limit": 1.0}
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
        self.assertTrue(results(failed(control, "fail", "a false alarm")).cells[0].is_bad)
        control["gates"][0]["observed"] = None
        self.assertTrue(results(control).cells[0].is_bad, "a figure is absent")
        made = page.make("", [found], bench.Bench(), [], [])
        self.assertEqual(made.line, "2 cells of 1 result set; 1 as expected, 0 not, 1 undecided.")


class Finding(unittest.TestCase):
    def test_a_defect_has_both_sides(self) -> None:
        row = answer.findings_table([results(sample.cell())]).rows[0]
        self.assertEqual(row[2].text, "retained: 3.00 MiB before, 0 B after, both as predicted")
        self.assertEqual(row[3].link, "#cell/0/leak/device=meta,recipe=delayed")

    def test_figures_are_those_of_the_cell_that_is_linked(self) -> None:
        def kept(recipe: str, **by_metric: tuple[int, int]) -> dict[str, Any]:
            record = sample.cell("shells", recipe)
            record["gates"] = []
            for name, values in by_metric.items():
                metric = f"memory.{name}_bytes"
                record["gates"].append({**GATE, "metric": metric})
                for arm, value in zip(("before", "after"), values):
                    record["arms"][arm]["metrics"][metric] = sample.metric(value)
            return record

        first = kept("delayed", retained=(9, 0), end_of_forward=(4, 4))
        other = kept("mxfp8", retained=(7, 0), end_of_forward=(9, 5))
        crashed = kept("block", retained=(0, 0), end_of_forward=(0, 0))
        crashed["arms"]["before"] |= {"status": "error", "metrics": {}}
        row = answer.findings_table([results(first, other, crashed)]).rows[0]
        forward = "end of forward: 9 B before, 5 B after (in device=meta,recipe=mxfp8)"
        error = "error before, works after (in device=meta,recipe=block)"
        self.assertEqual(row[2].text, f"retained: 9 B before, 0 B after; {forward}; {error}")
        self.assertEqual(row[3].link, "#cell/0/shells/device=meta,recipe=delayed")
        links = [part.link for part in row[2].parts if part.link]
        self.assertEqual(links, [f"#cell/0/shells/device=meta,recipe={recipe}" for recipe in ("mxfp8", "block")])
        both = kept("mxfp8", retained=(7, 0), end_of_forward=(9, 5))
        first["gates"] = both["gates"]
        first["arms"]["before"]["metrics"]["memory.end_of_forward_bytes"] = sample.metric(8)
        row = answer.findings_table([results(first, both)]).rows[0]
        self.assertEqual(row[2].text, "retained: 9 B before, 0 B after; end of forward: 8 B before, 4 B after")
        works = answer.findings_table([results(kept("delayed", retained=(0, 0)), crashed)]).rows[0]
        self.assertEqual((works[2].text, works[3].text), ("error before, works after", "shells"))
        self.assertEqual(works[3].link, "#cell/0/shells/device=meta,recipe=block")

    def test_figures_that_differ_do_not_read_the_same(self) -> None:
        record = sample.cell()
        for arm, value in (("before", 328_192), ("after", 328_208)):
            record["arms"][arm]["metrics"]["memory.retained_bytes"] = sample.metric(value)
        found = results(record)
        self.assertEqual(answer.findings_table([found]).rows[0][2].text, "retained: 328,192 B before, 328,208 B after")
        self.assertEqual([entry.text for entry in tables.fixes_table([found]).rows[0][6:8]], ["328,192 B", "328,208 B"])

    def test_a_fix_that_shows_in_bits_alone_says_so(self) -> None:
        record = sample.cell()
        for arm in ("before", "after"):
            record["arms"][arm]["metrics"]["memory.retained_bytes"] = sample.metric(0)
        plain = copy.deepcopy(record) | {"verdict": "unaffected", "id": "leak/plain"}
        record["arms"]["before"]["metrics"]["parity.bitwise_equal"] = sample.metric(0, unit="1")
        found = results(plain, record)
        row = answer.findings_table([found]).rows[0]
        self.assertEqual(row[2].text, "before's bits differ from after's")
        self.assertEqual(row[3].link, "#cell/0/leak/device=meta,recipe=delayed")
        (row,) = tables.fixes_table([found]).rows
        self.assertEqual([entry.text for entry in row[5:8]], ["parity.bitwise_equal", "no", units.ABSENT])
        self.assertEqual(row[-1].text, "device=meta,recipe=delayed")
        self.assertEqual(tables.fixes_table([results(plain)]).rows[0][5].text, "no difference")

    def test_a_fix_whose_cells_did_not_run_says_so(self) -> None:
        skipped = failed(sample.cell(), "skipped", "no GPU") | {"arms": {}, "gates": []}
        (row,) = tables.fixes_table([results(skipped)]).rows
        self.assertEqual((row[5].text, row[5].note), ("did not run", "no GPU"))

    def test_what_gates_expect_comes_first(self) -> None:
        record = sample.cell("learns", "bf16", fix=None)
        bound = {"text": "after parity.validation_loss is at most 3", "metric": "parity.validation_loss"}
        exact = {"text": "after parity.weights_moved equals 1", "metric": "parity.weights_moved"}
        formula = {"text": "after memory.retained_bytes equals predicted", "metric": "memory.retained_bytes"}
        record["gates"] = [{**GATE, **gate} for gate in (exact, formula, bound)]
        record["arms"]["after"]["metrics"] |= {
            "parity.validation_loss": sample.metric(2.878, unit="1"),
            "parity.weights_moved": sample.metric(1, unit="1"),
        }
        text = "validation loss 2.878 (at most 3); weights moved 1 (as expected); retained 0 B (as predicted); peak 9.00 MiB"
        self.assertEqual(answer.findings_table([results(record)]).rows[0][2].text, text)

    def test_bf16_is_not_compared_with_itself(self) -> None:
        record = sample.cell("learns", "bf16", fix=None)
        self.assertNotIn("loss gap", answer.findings_table([results(record)]).rows[0][2].text)
        record["gates"] = [{**GATE, "text": "after parity.loss_gap is at most 1", "metric": "parity.loss_gap"}]
        self.assertNotIn("loss gap", answer.findings_table([results(record)]).rows[0][2].text)

    def test_planted_differences_of_controls_are_no_finding(self) -> None:
        planted = sample.cell("mine", fix=None) | {"id": "mine/control=planted"}
        planted["arms"]["before"] = sample.arm(1, 0.0)
        row = answer.findings_table([results(planted, sample.cell("mine", fix=None))]).rows[0]
        self.assertEqual(row[3].link, "#cell/0/mine/device=meta,recipe=delayed")
        self.assertNotIn("before", row[2].text)

    def test_a_scenario_of_the_users_own_has_its_figures(self) -> None:
        results_of_mine = results(sample.cell("mine", fix=None))
        self.assertIn(("gates that hold", "1 of 1"), answer.answer([results_of_mine], []).figures)
        row = answer.findings_table([results_of_mine]).rows[0]
        self.assertEqual(row[2].text, "peak 9.00 MiB; retained 0 B; all gather 6.00 MiB; loss gap 0.01")
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
