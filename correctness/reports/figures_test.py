"""What a report shows, in which order, and the arithmetic behind it."""

import pathlib
import re
import unittest
from typing import Any

import sample
from matplotlib.backends.backend_agg import FigureCanvasAgg

import bench
import choice
import figures
import load
import measure_tables
import page
import panels
import parity_figures
import plot
import records
import set_tables
import style
import tables
import timeline
import units

MIB = sample.MIB


def result_set(*found: dict[str, Any], index: int = 0) -> load.ResultSet:
    results = load.ResultSet(f"set {index}", "", index)
    results.cells = [load.Cell(record, results) for record in found]
    return results


def with_metric(record: dict[str, Any], metric: str, **by_arm: float | None) -> dict[str, Any]:
    for arm, value in by_arm.items():
        record["arms"][arm]["metrics"].setdefault(metric, sample.metric(None))["value"] = value
    return record


class Choice(sample.Case):
    def retaining(self, scenario: str, before: int, after: int, recipe: str = "delayed") -> dict[str, Any]:
        return with_metric(sample.cell(scenario, recipe), "memory.retained_bytes", before=before, after=after)

    def test_timelines_are_of_the_cells_of_findings_largest_effect_first(self) -> None:
        for sizes in ((3, 8), (8, 3)):
            directory = self.directory / str(sizes[0])
            cells = [self.retaining(f"s{size}", size, 0) for size in sizes]
            ordered = sorted(cells, key=lambda cell: cell["scenario"], reverse=True)
            sample.write_set(directory, cells, findings=[sample.finding(cell) for cell in ordered])
            loader = load.Loader()
            loader.load(str(directory))
            self.assertEqual([cell.scenario for cell in figures.timeline_cells(loader.sets, 1)], ["s8"])
            self.assertEqual([cell.scenario for cell in figures.timeline_cells(loader.sets, 2)], ["s8", "s3"])

    def loaded(self, found: list[dict[str, Any]]) -> list[load.ResultSet]:
        sample.write_set(self.directory, found, findings=[])
        loader = load.Loader()
        loader.load(str(self.directory))
        return loader.sets

    def broken(self, scenario: str, number: int = 0) -> dict[str, Any]:
        """A cell of a fix that leaves memory equal, with a failed gate on it."""
        record = self.retaining(scenario, 5, 5)
        record["gates"] = [record["gates"][0] | {"pass": False}]
        return record | {"id": f"{scenario}/n={number}"}

    def test_a_cell_with_a_failed_gate_on_memory_is_always_drawn(self) -> None:
        held = self.retaining("equal", 5, 5)
        other = self.broken("other")
        other["gates"][0]["metric"] = "parity.loss_gap"
        sets = self.loaded([held, other, *(self.broken("b", number) for number in range(20)), self.broken("c")])
        drawn = [cell.id for cell in figures.timeline_cells(sets, 1)]
        self.assertEqual(drawn[:3], ["b/n=0", "c/n=0", "b/n=1"])
        self.assertEqual(len(drawn), figures.MOST_BROKEN)
        problems: list[load.Problem] = []
        plots = choice.choose(sets, bench.Bench(), 1, problems)
        self.assertEqual(sum(plot.section == "timelines" for plot in plots), figures.MOST_BROKEN)
        self.assertEqual(sum(plot.section == "holders" for plot in plots), figures.MOST_BROKEN)
        for arm in ("before", "after", "bf16"):  # no timeline is no mistake of the results
            (self.directory / "timelines" / "c" / f"n=0.{arm}.json.gz").unlink()
        plots = choice.choose(sets, bench.Bench(), 1, problems)
        self.assertEqual(sum(plot.section == "timelines" for plot in plots), figures.MOST_BROKEN - 1)
        self.assertEqual(sum(plot.section == "holders" for plot in plots), figures.MOST_BROKEN)
        self.assertEqual(problems, [])

    def absent(self, sets: list[load.ResultSet]) -> dict[str, str]:
        plots = choice.choose(sets, bench.Bench(), 1, [])
        return {gap.name: gap.absent for gap in page.make("", sets, bench.Bench(), plots, []).gaps}

    def test_absences_are_true(self) -> None:
        not_chosen = "no finding here is about memory, and no gate on memory failed"
        gaps = self.absent(self.loaded([self.retaining("equal", 5, 5)]))
        self.assertEqual(gaps["timelines"], not_chosen + "; `--snapshots --cells REGEX` writes the timelines of other cells")
        self.assertEqual(gaps["holders"], not_chosen)
        self.assertEqual(gaps["noise"], "only cells of a fix measured tensors against BF16's, and those are left out")
        self.assertEqual(gaps["compare"], "there is one result set, on one device")
        bare = result_set(self.retaining("equal", 5, 5))
        self.assertEqual(self.absent([bare])["timelines"], "no result set holds timelines of memory")
        self.assertIn("no result set holds timelines of memory, and no cell", self.absent([bare])["holders"])
        for arm in bare.cells[0].record["arms"].values():
            arm["peak_by_holder"] = arm["noise"] = []
        gaps = self.absent([bare])
        self.assertEqual(gaps["holders"], "no cell records who holds memory at its peak")
        self.assertEqual(gaps["noise"], "no cell measured tensors against BF16's")

    def test_every_fix_of_a_matrix_has_its_timelines(self) -> None:
        sizes = {"release_attention_tensors": 2, "release_fuser_tensors": 5}
        found = [self.retaining("a", size, 0) | {"fix": fix, "id": f"a/fix={fix}"} for fix, size in sizes.items()]
        sample.write_set(self.directory, found)
        loader = load.Loader()
        loader.load(str(self.directory))
        self.assertEqual([cell.fix for cell in figures.timeline_cells(loader.sets, 1)], list(sizes))

    def test_holders_that_keep_different_tensors_are_compared_by_owner(self) -> None:
        record = sample.cell()
        kept = {"before": "context of layers[*].attention: q, k, v", "after": "context of layers[*].attention: q"}
        for arm, name in kept.items():
            record["arms"][arm]["peak_by_holder"] = [{"holder": name, "bytes": 3}, {"holder": name + ", o", "bytes": 4}]
        record["arms"].pop("bf16", None)
        plot = figures.holder_plot(result_set(record).cells[0])
        self.assertEqual((plot.data.holders, plot.data.sizes), (["context of layers[*].attention"], [[7.0], [7.0]]))

    def test_holders_are_ordered_by_bytes_and_the_rest_is_summed(self) -> None:
        record = sample.cell()
        for arm, sizes in (("before", (1, 40, 3, 20)), ("after", (1, 30, 3, 20)), ("bf16", (1, 30, 3, 50))):
            record["arms"][arm]["peak_by_holder"] = [
                {"holder": name, "bytes": size} for name, size in zip("abcd", sizes)
            ]
        plot = figures.holder_plot(result_set(record).cells[0], most=2)
        self.assertEqual(plot.data.holders, ["d", "b", "2 others"])
        self.assertEqual(plot.data.arms, ["before", "after", "bf16"])
        self.assertEqual(plot.data.sizes, [[20, 40, 4], [20, 30, 4], [50, 30, 4]])

    def test_traffic_is_of_the_largest_gathers_with_fixes_first(self) -> None:
        def gathering(scenario: str, recipe: str, before: int | None, after: int) -> dict[str, Any]:
            record = sample.cell(scenario, recipe, fix=None if before is None else "gather_eight_bits")
            record["id"] += f",gathers={after}"
            sides = {"after": after} if before is None else {"before": before, "after": after}
            return with_metric(record, "traffic.all_gather_bytes", **sides)

        found = result_set(
            gathering("plain", "bf16", None, 900),
            gathering("plain", "delayed", None, 901),
            gathering("small", "delayed", 20, 10),
            gathering("small", "bf16", 20, 20),
            gathering("large", "mxfp8", 40, 11),
            gathering("large", "mxfp8", 50, 5),
            gathering("large", "delayed", 15, 15),
            gathering("large", "a new one", 4, 4),
            gathering("large", "bf16", 30, 30),
        )
        plots = figures.wire_plots([found])
        self.assertEqual([plot.title.partition(":")[0] for plot in plots], ["large", "small", "plain"])
        self.assertEqual(plots[0].data.groups, ["bf16", "a new one", "delayed", "mxfp8"])
        self.assertIn("gathers=5", plots[0].caption, "the cell whose larger side gathers most")
        self.assertNotIn("gathers=11", plots[0].caption)

    def test_figures_that_are_equal_in_several_sets_are_shown_once_with_all_names(self) -> None:
        def gathering(recipe: str, largest: int) -> dict[str, Any]:
            record = sample.cell("wires", recipe, None)
            with_metric(record, "traffic.all_gather_payload_bytes", after=largest)
            return with_metric(record, "traffic.all_gather_bytes", after=largest)

        def measured(index: int, largest: int) -> load.ResultSet:
            return result_set(gathering("bf16", largest), gathering("delayed", 2), index=index)

        def titles(*sets: load.ResultSet) -> list[str]:
            chosen = choice.choose(list(sets), bench.Bench(), 1, [])
            return [plot.title.partition("(set ")[2] for plot in chosen if plot.section == "wire"]

        self.assertEqual(titles(measured(0, 4), measured(1, 3), measured(2, 4)), ["0, set 2)", "1)"])
        self.assertEqual(titles(measured(0, 4)), [""])

    def losing(self, scenario: str, recipe: str, gaps: tuple[float, ...], fix: str | None = None) -> dict[str, Any]:
        record = sample.cell(scenario, recipe, fix)
        record["id"] += f",gap={gaps[-1]}"
        arms = ("before", "after") if fix else ("after",)
        return with_metric(record, "parity.loss_gap", **dict(zip(arms, gaps)))

    def test_losses_of_fixes_are_ranked_by_how_far_their_sides_end_apart(self) -> None:
        fix = "share_amax_over_shards"
        found = result_set(
            self.losing("near", "delayed", (0.02, 0.01), fix),
            self.losing("worse", "delayed", (0.01, 0.09), fix),
            self.losing("far", "delayed", (0.06, 0.01), fix),
        )
        titles = [plot.title.partition(":")[0] for plot in parity_figures.loss_plots([found])]
        self.assertEqual(titles, ["worse", "far", "near"])

    def test_the_cell_furthest_from_bf16_of_each_recipe_is_drawn(self) -> None:
        gaps = {"delayed": (0.01, 0.04, 0.02), "mxfp8": (0.005, 0.001, 0.003)}
        found = [self.losing("p", recipe, (gap,)) for recipe, each in gaps.items() for gap in each]
        (plot,) = parity_figures.loss_plots([result_set(*found)])
        self.assertEqual(re.findall(r"gap=([0-9.]+)[;.]", plot.caption), ["0.04", "0.005"])

    def test_distances_are_relative_to_bf16_and_absent_where_there_are_none(self) -> None:
        data = parity_figures.LossData([2.0, 4.0, -5.0, 0.0, None, 3.0], [])
        self.assertEqual(data.distances([1.0, 5.0, -4.0, 1.0, 1.0, 3.0]), [0.5, 0.25, 0.2, None, None, None])
        self.assertEqual(data.distances([None, 4.5]), [None, 0.125])

    def test_losses_of_a_long_training_are_drawn_at_their_steps(self) -> None:
        data = parity_figures.LossData([], [], steps=1000)
        self.assertEqual(data.numbers([1.0] * 4), [1, 334, 667, 1000])
        self.assertEqual(data.numbers([1.0]), [1])
        self.assertEqual(parity_figures.LossData([], []).numbers([1.0, 1.0, 1.0]), [1, 2, 3])


class Timelines(unittest.TestCase):
    def made(self, *sizes: int, marks: tuple[tuple[str, int], ...] = ()) -> timeline.Timeline:
        """A first block, and further blocks that live for one event each, every one in a layer of another kind."""
        holders = [timeline.Holder("parameter", "w", "")] + [timeline.Holder("saved slot", f"l{i}", "") for i in range(len(sizes))]
        events = [timeline.Event(100, 100, 100, 0, "forward", 0, None)]
        for i, size in enumerate(sizes):
            events.append(timeline.Event(size, size, 100 + size, i + 1, "forward", 0, None))
            events.append(timeline.Event(-size, size, 100, i + 1, "forward", 0, None))
        return timeline.Timeline(holders, [timeline.Mark(name, 0, 0, event) for name, event in marks], events)

    def test_curves_of_few_and_of_many_events_are_stepped(self) -> None:
        for count in (3, 200):
            made = self.made(*(i % 7 + 1 for i in range(count)))
            bands, axis = timeline.bands([made], 2), timeline.shared_axis([made])
            curve = timeline.curve(made, bands, axis, 1000)
            drawn = panels.panel(figures.TimelineData(["after"], bands, axis, [curve], curve.peak[1]), 0)
            areas = re.findall(r' d="([^"]*Z)"', drawn)
            self.assertEqual(len(areas), len(bands))
            for area in areas:
                self.assertRegex(area, r"\AM[0-9. ]+([HV][0-9.]+)+Z\Z", "no slanted line")

    def test_bands_are_of_the_largest_holders(self) -> None:
        made = self.made(5, 50, 20, marks=(("a", 2), ("b", 6)))
        chosen = timeline.bands([made], 2)
        self.assertEqual([band.label for band in chosen], ["parameter of w", "saved slot of l1", "other temporary"])

    def test_retained_bytes_are_of_the_last_step(self) -> None:
        made = self.made(1, marks=(("end_of_backward", 1), ("end_of_step", 2), ("end_of_backward", 3), ("end_of_step", 3)))
        self.assertIs(made.retained_at(), made.marks[2])

    def test_a_mark_is_drawn_after_its_last_event(self) -> None:
        made = self.made(5, 50, marks=(("first", 1), ("third", 3), ("end", 5)))
        axis = timeline.shared_axis([made])
        curve = timeline.curve(made, timeline.bands([made], 9), axis, 100)
        self.assertEqual([(name, x) for name, x, _ in curve.marks], [("first", 1.0), ("third", 3.0), ("end", 5.0)])

    def test_thinned_curves_keep_the_peak_and_the_marks(self) -> None:
        sizes = [10] * 500
        sizes[321] = 77
        made = self.made(*sizes, marks=(("here", 700),))
        axis = timeline.shared_axis([made])
        curve = timeline.curve(made, timeline.bands([made], 9), axis, 20)
        self.assertLess(len(curve.x), 100)
        self.assertEqual(curve.peak, (644.0, 177))
        self.assertEqual(curve.live[curve.x.index(644.0)], 177)
        self.assertIn(700.0, curve.x)


class Tables(unittest.TestCase):
    def test_percentiles_are_nearest_rank_samples(self) -> None:
        record = sample.cell()
        record["arms"]["after"]["samples"]["host.pre_forward_ns"] = [100 * i for i in range(12)]
        table = measure_tables.host_table([result_set(record)])
        row = next(row for row in table.rows if row[table.columns.index("arm")].text == "after")
        found = {name: row[table.columns.index(name)].sort for name in ("p10", "p90", "p99", "samples kept")}
        self.assertEqual(found, {"p10": 100, "p90": 1000, "p99": 1100, "samples kept": 12})

    def test_comparisons_of_sets_are_ordered_by_spread_largest_first(self) -> None:
        one = [with_metric(sample.cell(name), "memory.retained_bytes", after=value) for name, value in (("a", 100), ("b", -10))]
        two = [with_metric(sample.cell(name), "memory.retained_bytes", after=value) for name, value in (("a", 90), ("b", 40))]
        table, _ = set_tables.compare_table([result_set(*one), result_set(*two, index=1)])
        spread = [(row[0].text.partition("/")[0], row[-1].sort) for row in table.rows]
        self.assertEqual(spread, [("b", 1.25), ("a", 0.1)])

    def test_claims_are_compared_in_one_unit(self) -> None:
        table = tables.claims_table([result_set(sample.cell())])
        self.assertEqual(table.rows[0][table.columns.index("claimed")].sort, 3 * MIB)

    def test_omitted_rows_are_counted_only_if_there_are_any(self) -> None:
        found = result_set(sample.cell("a", fix=None), sample.cell("b", fix=None), sample.cell("with a fix"))
        noise = [entry["tensor"] for entry in found.cells[0].record["arms"]["after"]["noise"]] * 2
        for most, caption in ((4, "The first 4 of 6 rows; the results' own files hold the others."), (6, ""), (7, "")):
            table = measure_tables.noise_table([found], most)
            tensors = [row[table.columns.index("tensor")].text for row in table.rows]
            self.assertEqual((table.caption, tensors), (caption, noise[:most]))

    def test_skipped_cells_are_not_counted_as_expected(self) -> None:
        for verdicts, counted in (
            (["skipped"] * 3, "3 cells of 1 result set; 0 as expected, 0 not, 3 skipped."),
            (["pass", "skipped", "fail", "confirmed"], "4 cells of 1 result set; 2 as expected, 1 not, 1 skipped."),
            (["pass"], "1 cell of 1 result set; 1 as expected, 0 not."),
            (["pass", "timeout"], "2 cells of 1 result set; 1 as expected, 1 not."),
        ):
            found = result_set(*(sample.cell(str(i)) | {"verdict": verdict} for i, verdict in enumerate(verdicts)))
            self.assertEqual(page.make("", [found], bench.Bench(), [], []).line, counted)

    def test_only_gates_that_hold_count(self) -> None:
        record = sample.cell()
        record["gates"] = [record["gates"][0] | {"pass": passed} for passed in (True, None, False)]
        table = tables.cells_table([result_set(record)])
        self.assertEqual(table.rows[0][table.columns.index("gates that hold")].text, "1 of 3")

    def test_failed_cells_need_attention_and_skipped_ones_have_a_table(self) -> None:
        found = result_set(*(sample.cell(verdict) | {"verdict": verdict} for verdict in records.VERDICTS))
        good = ("confirmed", "unaffected", "pass", "skipped")
        shown = [row[0].text for row in tables.attention_table([found]).rows]
        self.assertEqual(shown, [verdict for verdict in records.VERDICTS if verdict not in good])
        (row,) = tables.skipped_table([found]).rows
        self.assertEqual([entry.text for entry in row[:1] + row[2:4]], ["skipped", "1", "device=meta,recipe=delayed"])
        for cell in found.cells:
            look = "" if cell.verdict == "skipped" else "good" if cell.verdict in good else "bad"
            self.assertEqual((tables.counts([cell]).look, tables.verdict_text(cell).look), (look, look), cell.verdict)

    def test_curves_of_the_host_name_their_cells_and_differ_by_colour(self) -> None:
        def painted(*cells: dict[str, Any]) -> tuple[figures.Plot, list[str]]:
            (made,) = figures.host_plots([result_set(*cells)])
            return made, [line.get_color() for line in plot.paint_host(made.data).axes[0].lines[::2]]

        made, colours = painted(*(sample.cell("host", recipe, None) for recipe in ("delayed", "mxfp8")))
        self.assertIn("Shown: delayed: device=meta,recipe=delayed; mxfp8: device=meta,recipe=mxfp8.", made.caption)
        self.assertEqual(len({*colours}), 2)
        self.assertEqual(painted(sample.cell("host"))[1], [style.SIDES["before"], style.SIDES["after"]])


class Units(unittest.TestCase):
    def test_bytes_of_either_sign_are_reported_in_powers_of_1024(self) -> None:
        self.assertEqual(
            [units.byte_text(value) for value in (0, 1023, 1024, 2048, -5 * MIB, 15 * MIB, 3 * 2**30)],
            ["0 B", "1,023 B", "1.00 KiB", "2.00 KiB", "-5.00 MiB", "15.0 MiB", "3.00 GiB"],
        )

    def test_units_have_the_values_of_the_program(self) -> None:
        text = (sample.ROOT / "lib" / "harness" / "cell" / "units.cpp").read_text()
        self.assertIn("kMiB = 1024.0 * 1024.0;", text)
        rows = re.findall(r'Unit\{"([^"]+)", "([^"]+)", ([^}]+)\}', text)
        self.assertGreater(len(rows), 12)
        for name, base, factor in rows:
            value = 1.0
            for term in factor.split("*"):
                value *= MIB if term.strip() == "kMiB" else float(term)
            self.assertEqual(units.factor(name, base), value, f"{name} of {base}")
        self.assertIsNone(units.factor("MiB", "ns"))


class Labels(sample.Case):
    def test_names_of_files_are_short_and_differ_where_ids_do(self) -> None:
        ids = ["leak/" + "x" * 300 + end for end in ("", "=1", "=2")]
        names = [figures.slug(cell_id) for cell_id in ids]
        self.assertEqual(len({*names}), 3)
        self.assertEqual({len(name) for name in names}, {180})
        self.assertRegex(names[0], r"\Aleak-x+-[0-9a-f]{16}\Z")
        self.assertEqual(figures.slug("leak/" + "x" * 175), "leak-" + "x" * 175)

    def test_names_that_differ_at_their_ends_stay_distinct(self) -> None:
        long = "saved slot of layers[*].mlp: activation_in, activation_out, mean, norm_out, "
        cut = [style.short(long + end, 60) for end in ("rstd, weight", "rstd, weight_transpose")]
        self.assertEqual([len(text) for text in cut], [60, 60])
        self.assertTrue(cut[0].startswith("saved slot of layers[*].mlp") and cut[0].endswith("rstd, weight"), cut[0])
        self.assertNotEqual(*cut)
        self.assertEqual(style.short("output", 6), "output")

    def test_the_legend_of_holders_covers_no_bar(self) -> None:
        painted = plot.paint_holders(figures.HolderData(["a", "b"], ["before", "after"], [[1.0, 9.0], [1.0, 9.0]]))
        FigureCanvasAgg(painted).draw()
        (axes,) = painted.axes
        self.assertGreaterEqual(axes.get_legend().get_window_extent().x0, axes.get_window_extent().x1)

    def test_distances_within_a_decade_are_labelled_in_percent(self) -> None:
        for losses, label in (([1.000002, 1.000003, 1.000015], "0.0002 %"), ([1.0001, 1.01, 1.1], "")):
            painted = plot.paint_loss(parity_figures.LossData([1.0, 1.0, 1.0], [("delayed", losses)]))
            self.assertEqual(painted.axes[1].yaxis.get_minor_formatter()(2e-6, 0), label)


class Sources(sample.Case):
    def test_times_of_benchmarks_are_nanoseconds_whatever_their_unit(self) -> None:
        rows = [sample.benchmark(unit, 3.0) | {"time_unit": unit} for unit in ("ns", "us", "ms", "s")]
        found = bench.load([("a", sample.write_benchmarks(self.directory / "x.json", rows))], [])
        self.assertEqual([row.nanoseconds for row in found.ours], [3.0, 3e3, 3e6, 3e9])

    def test_a_skipped_benchmark_has_no_time(self) -> None:
        rows = [sample.benchmark("a", 0.0) | {"skipped": True, "skip_message": "no GPU"}]
        (row,) = bench.load([("a", sample.write_benchmarks(self.directory / "x.json", rows))], []).ours
        self.assertEqual((row.nanoseconds, row.reason), (None, "no GPU"))

    def test_a_run_without_its_end_is_not_complete(self) -> None:
        directory = pathlib.Path(sample.write_set(self.directory / "complete"))
        loader = load.Loader()
        loader.load(str(directory))
        (directory / "results.json").unlink()
        (directory / "results.jsonl").write_text("")
        loader.load(str(directory))
        self.assertEqual([results.complete for results in loader.sets], [True, False])


if __name__ == "__main__":
    unittest.main()
