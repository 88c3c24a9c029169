"""What sections of a report say: who holds memory after backward and at the peak, which gates fail, and the words of
Markdown for which the words of the page do not fit."""

import re
import unittest
from typing import Any

import sample

import bench
import figures
import load
import measure_tables
import page
import tables

MIB = sample.MIB


def result_set(*found: dict[str, Any], index: int = 0) -> load.ResultSet:
    results = load.ResultSet(f"set {index}", "", index)
    results.cells = [load.Cell(record, results) for record in found]
    return results


def report(*found: dict[str, Any]) -> page.Report:
    return page.make("", [result_set(*found)], bench.Bench(), [], [])


def section_of(markdown: str, title: str) -> str:
    return markdown.split(f"\n## {title}\n")[1].split("\n## ")[0]


def retaining(scenario: str, holders: dict[str, int], arm: str = "before", **changes: Any) -> dict[str, Any]:
    """A cell of which only `arm` holds memory after backward."""
    record = sample.cell(scenario, **changes)
    for name, one in record["arms"].items():
        own = holders if name == arm else {}
        one["retained_by_holder"] = [{"holder": holder, "bytes": size} for holder, size in own.items()]
        one["metrics"]["memory.retained_bytes"]["value"] = sum(own.values())
    return record


def failed(record: dict[str, Any], arm: str = "after", number: int = 0) -> dict[str, Any]:
    gate = {
        "text": f"{arm} memory.retained_bytes equals 0",
        "arm": arm,
        "metric": "memory.retained_bytes",
        "pass": False,
        "observed": 7 * MIB + 1,
        "limit": 7 * MIB,
    }
    return record | {"verdict": "fail", "gates": [gate], "id": f"{record['scenario']}/n={number}"}


class HoldersAfterBackward(unittest.TestCase):
    def rows(self, *found: dict[str, Any]) -> list[list[str]]:
        """The cell's scenario, arm, holder and bytes of each row."""
        rows = measure_tables.retained_table([result_set(*found)]).rows
        return [[row[1].text.partition("/")[0], *(entry.text for entry in row[3:])] for row in rows]

    def test_a_fix_has_the_holders_before_it_largest_first(self) -> None:
        small = retaining("leak", {"context of a: q": 5}, recipe="mxfp8")
        large = retaining("leak", {"context of a: q": MIB, "context of b: k": 3 * MIB})
        rows = [["leak", "before", "context of b: k", "3.00 MiB"], ["leak", "before", "context of a: q", "1.00 MiB"]]
        self.assertEqual(self.rows(small, large), rows)
        self.assertEqual(self.rows(large, small), rows)

    def test_every_scenario_with_memory_after_backward_is_there(self) -> None:
        found = [
            retaining("leak", {"context of a": 5}),
            retaining("own", {"workspace": 4}, "after", fix=None),
            retaining("only bf16", {"workspace": 3}, "bf16"),
            retaining("nothing", {}),
        ]
        self.assertEqual(
            [row[:2] for row in self.rows(*found)], [["leak", "before"], ["own", "after"], ["only bf16", "bf16"]]
        )

    def test_many_holders_are_one_for_all_layers_and_the_rest_is_counted(self) -> None:
        layers = {f"context of layers[{i}].mlp: fc1": 10 for i in range(20)}
        folded = ["leak", "before", "context of layers[*].mlp: fc1", "200 B"]
        self.assertEqual(self.rows(retaining("leak", layers)), [folded])
        names = {f"context of {name}": size for size, name in enumerate("abcdefghijk", 1)}
        rows = self.rows(retaining("leak", names))
        self.assertEqual(rows[0][2:], ["context of k", "11 B"])
        self.assertEqual((len(rows), rows[-1][2:]), (9, ["and 3 more", "6 B"]))
        record = retaining("leak", names)
        shown = page.details([result_set(record)])["cells"][result_set(record).cells[0].anchor]["arms"]["before"]["retained"]
        self.assertEqual((len(shown), shown[-1]), (9, ("and 3 more", 6)), "the unfolded cell counts them too")
        few = {f"context of layers[{i}]": 10 for i in range(3)}
        self.assertEqual([row[2] for row in self.rows(retaining("leak", few))], list(few))

    def test_cells_with_a_failed_gate_come_first_with_the_arms_of_the_gate(self) -> None:
        fine = retaining("leak", {"context of a": 99}, recipe="mxfp8")
        broken = failed(retaining("leak", {"context of b": 7}, "after"))
        self.assertEqual(
            self.rows(fine, broken), [["leak", "after", "context of b", "7 B"], ["leak", "before", "context of a", "99 B"]]
        )
        of_both = failed(retaining("leak", {"context of b": 7}, "after"), "difference")
        self.assertEqual(self.rows(fine, of_both), self.rows(fine, broken))
        broken["arms"]["before"]["retained_by_holder"] = [{"holder": "context of c", "bytes": 8}]
        self.assertEqual([row[2] for row in self.rows(fine, broken)], ["context of b", "context of a"])
        many = [failed(retaining("leak", {"context of b": 7}, "after"), number=number) for number in range(15)]
        table = measure_tables.retained_table([result_set(*many)])
        self.assertEqual(len(table.rows), figures.MOST_BROKEN)
        self.assertEqual(table.caption, "3 more cells failed a gate on memory.retained_bytes; Needs attention lists them.")

    def test_both_formats_have_the_section(self) -> None:
        made = report(retaining("leak", {"context of a: q": 3 * MIB}))
        row = "| confirmed | `leak/device=meta,recipe=delayed` | before | `context of a: q` | 3.00 MiB |"
        self.assertIn(row, section_of(page.markdown(made), "Holders after backward"))
        html = page.html(made, {}).split('<section id="retained" class="screen">')[1].split("</section>")[0]
        self.assertRegex(html, r"context of a: q</td>\s*<td[^>]*>3\.00 MiB")

    def test_absences_are_true(self) -> None:
        def absent(record: dict[str, Any]) -> str:
            return next(gap.absent for gap in report(record).gaps if gap.name == "retained")

        record = retaining("leak", {})
        self.assertEqual(absent(record), "no arm retains memory after backward")
        record["arms"]["before"]["metrics"]["memory.retained_bytes"]["value"] = 3
        self.assertEqual(absent(record), "arms retain memory after backward, and none of them records who holds it")
        for arm in record["arms"].values():
            del arm["metrics"]["memory.retained_bytes"]
        self.assertEqual(absent(record), "no cell measured memory after backward")


class HoldersAtThePeak(unittest.TestCase):
    def caption(self, record: dict[str, Any]) -> str:
        plot = figures.holder_plot(result_set(record).cells[0])
        assert plot is not None
        return plot.caption

    def test_equal_bars_are_named(self) -> None:
        same = " Before and after hold the same at the peak"
        self.assertTrue(self.caption(sample.cell()).endswith(f"{same}; Holders after backward has what stays."))
        self.assertTrue(self.caption(retaining("none", {})).endswith(f"{same}."))

    def test_bars_that_differ_are_not(self) -> None:
        differs = sample.cell()
        differs["arms"]["before"]["peak_by_holder"] = [{"holder": "context of a", "bytes": 1}]
        for record in (differs, sample.cell("own", fix=None)):
            self.assertNotIn("the same at the peak", self.caption(record))


class Gates(unittest.TestCase):
    def test_every_failed_or_undecided_gate_is_under_needs_attention_with_exact_figures(self) -> None:
        record = failed(retaining("leak", {"context of b": 7}, "after"))
        ends = {"text": "before ends ok", "arm": "before", "metric": None, "observed": None, "limit": None}
        record["gates"] += [
            ends | {"pass": False, "detail": "it ended error"},
            ends | {"pass": None, "text": "after parity.loss_gap is at most 2", "metric": "parity.loss_gap", "limit": 2},
            ends | {"pass": True, "text": "after memory.peak_bytes equals predicted"},
        ]
        text = section_of(page.markdown(report(record, sample.cell("fine"))), "Needs attention")
        cell = "`leak/n=0`"
        rows = [line for line in text.splitlines() if line.startswith(f"| {cell} |")]
        self.assertEqual(
            rows,
            [
                f"| {cell} | `after memory.retained_bytes equals 0` | no | 7,340,033 B | 7,340,032 B |  |",
                f"| {cell} | `before ends ok` | no | – | – | it ended error |",
                f"| {cell} | `after parity.loss_gap is at most 2` | undecided | – | 2 |  |",
            ],
        )

    def test_the_unit_is_known_where_the_gates_arm_failed(self) -> None:
        record = failed(sample.cell())
        record["arms"]["after"]["metrics"] = {}
        record["gates"][0]["observed"] = None
        row = tables.gates_table([result_set(record)]).rows[0]
        self.assertEqual((row[4].text, row[5].text), ("–", "7,340,032 B"))

    def test_cells_as_expected_have_no_row(self) -> None:
        record = sample.cell()
        record["gates"][0]["pass"] = None
        self.assertEqual(tables.gates_table([result_set(record)]).rows, [])


class Sections(unittest.TestCase):
    def test_the_readme_lists_the_sections_in_their_order(self) -> None:
        text = (sample.ROOT / "reports" / "README.md").read_text(encoding="utf-8")
        rows = re.findall(r"(?m)^\| ([^|`]+) \|", text)[1:]
        listed = [title for row in rows for title in row.split(", ")]
        made = page.make("", [result_set(sample.cell())], bench.Bench(), [], [load.Problem("a", "b", "c")])
        self.assertEqual(listed, [*(section.title for section in made.sections), "Not in these results"])


class Rows(unittest.TestCase):
    def test_skipped_cells_of_one_reason_are_one_row(self) -> None:
        def later(scenario: str, reason: str, number: int) -> dict[str, Any]:
            return sample.cell(scenario) | {"verdict": "skipped", "reason": reason, "id": f"{scenario}/n={number}"}

        reasons = ("needs 84.2 GiB (90,423 B)", "needs 78.9 GiB (84,728 B)", "no GPU")
        found = result_set(*(later(name, why, n) for name in ("a", "b") for n, why in enumerate(reasons)))
        rows = [[row[0].text, *(entry.text for entry in row[2:])] for row in tables.skipped_table([found]).rows]
        self.assertEqual(rows[:2], [["a", "2", "n=0", reasons[0]], ["a", "1", "n=2", "no GPU"]])
        self.assertEqual(len(rows), 4)

    def test_step_times_are_relative_to_bf16_and_to_before(self) -> None:
        record = sample.cell(device="cpu")
        record["gates"][0] |= {"arm": "after", "metric": "time.step_ms", "text": "after time.step_ms is at most 1.05 of before's"}
        for arm, value in (("before", 4.0), ("after", 3.0), ("bf16", 6.0)):
            record["arms"][arm]["metrics"]["time.step_ms"] = sample.metric(value, unit="ms")
        table = measure_tables.times_table([result_set(record, sample.cell("no times"))])
        found = [dict(zip(table.columns, (entry.text for entry in row))) for row in table.rows]
        self.assertEqual([row["step"] for row in found], ["4 ms", "3 ms", "6 ms"])
        self.assertEqual([row["step : BF16's"] for row in found], ["–", "0.50", "–"])
        self.assertEqual([row["step : before's"] for row in found], ["–", "0.75", "–"])
        judged = "after time.step_ms is at most 1.05 of before's: holds"
        self.assertEqual([row["judged"] for row in found], ["no", judged, "no"])
        self.assertIn("delayed on cpu 0.50 to 0.50 (1 cell)", table.caption)
        record["arms"]["after"]["emulated"] = "no FP8 products"
        self.assertIn("delayed (emulated) on cpu 0.50", measure_tables.times_table([result_set(record)]).caption)
        record["config"]["device"] = "meta"
        self.assertEqual("", measure_tables.times_table([result_set(record)]).caption, "nothing was computed")


class Words(unittest.TestCase):
    def test_markdown_has_no_words_about_links_and_choosing(self) -> None:
        made = report(*sample.cells())
        markdown = page.markdown(made)
        html = page.html(made, {})
        for words in ("Choose a cell", "its address"):
            self.assertIn(words, html)
            self.assertNotIn(words, markdown)
        self.assertIn("report.html has the gates, notes and all figures of each.", section_of(markdown, "All cells"))

    def test_markdown_names_the_cell_where_the_page_has_a_link(self) -> None:
        made = report(*sample.cells())
        for title in ("Findings", "Claims of the source documents"):
            self.assertIn("| `leak/device=meta,recipe=delayed` |", section_of(page.markdown(made), title))

    def test_traffic_is_called_bytes_of_full_arrays(self) -> None:
        found = [sample.cell("wires", recipe, None) for recipe in ("bf16", "delayed")]
        (plot,) = figures.wire_plots([result_set(*found)])
        self.assertIn("Bytes of the full arrays that the collectives of one rank gather or reduce in a step;", plot.caption)
        text = section_of(page.markdown(report(*found)), "Bytes on the wire")
        self.assertIn("In a ring of N ranks each sends (N-1)/N of what it gathers or reduce-scatters.", text)
        self.assertNotRegex(re.sub(r"\s+", " ", text + plot.caption), "(?i)one rank moves|per rank and step")


if __name__ == "__main__":
    unittest.main()
