"""The choice of a report's figures."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import bench as benches
from figures import Plot, holder_plot, host_plots, once, read_timelines, timeline_cells, timeline_paths, timeline_plot, wire_plots
from load import Problem, ResultSet
from parity_figures import loss_plots, noise_plots

# --- ratios -----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class RatioData:
    rows: list[tuple[str, str, float]]  # row, bound or peer, ratio
    line: str


def ratio_plots(bench: benches.Bench, most: int = 28) -> list[Plot]:
    out = []
    same, others = "measured in the same run or on the same machine", "measured in the same set if no other one is named"
    for name, title, line, where, ratios in (
        ("bounds", "Share of the physical bound", "the bound", same, benches.to_bounds(bench)),
        ("peers", "Speed against peers", "the peer", others, benches.to_peers(bench)),
    ):
        rows = [(ratio.name, ratio.to, ratio.value) for ratio in ratios if ratio.value is not None]
        for page in range(0, min(len(rows), 3 * most), most):
            number = f" ({page // most + 1})" if len(rows) > most else ""
            out.append(
                Plot(
                    f"ratio-{name}-{page // most}",
                    "ratios",
                    "ratio",
                    title + number,
                    f"1 is as fast as {line}, {where}; right of it is faster.",
                    RatioData(rows[page : page + most], line),
                )
            )
    return out


Chosen = Callable[[list[ResultSet]], list[Plot]]


Map = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]


def choose(
    sets: list[ResultSet], bench: benches.Bench, per_fix: int, problems: list[Problem], run_each: Map = map
) -> list[Plot]:
    """`run_each` reads the timelines, as `map` does or several at a time."""
    cells = timeline_cells(sets, per_fix)
    read = run_each(read_timelines, [timeline_paths(cell) for cell in cells])
    of_fixes = [timeline_plot(cell, *found, problems) for cell, found in zip(cells, read)]
    of_fixes += [holder_plot(cell) for cell in cells]
    more: list[Chosen] = [wire_plots, host_plots, loss_plots, noise_plots]
    plots = once(plot for plot in of_fixes if plot) + [plot for pick in more for plot in pick(sets)]
    if len(sets) > 1:
        for plot in plots:
            plot.title += f" ({', '.join(plot.sets)})"
    return plots + ratio_plots(bench)
