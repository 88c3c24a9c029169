"""The style of plots. Colours differ in lightness too, not only in hue, so that people with any colour vision can tell
them apart.

Ink, grid and page have distinct colours, which the HTML page replaces by the colours of its theme.
"""

import functools
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

import units

INK, GRID, PAGE = "#1b1f25", "#d3d7dd", "#fefefd"
THEME = {INK: "var(--ink)", GRID: "var(--grid)", PAGE: "var(--page)"}
# Okabe and Ito's colours and shades of them. Cool: bytes that outlive backward; warm: bytes that do not.
COOL = ("#0072b2", "#56b4e9", "#00604a", "#8fd6bd", "#2f4b7c", "#b3cde3", "#4d8f7f", "#9fb4c7", "#c9dbe6", "#41607a")
WARM = ("#d55e00", "#f0c542", "#9e2f5f", "#f4a6c0", "#8c510a", "#e69f00", "#fbe3b0", "#b5523b", "#f3c9a5", "#6b3d2e")
SIDES = {"before": "#d55e00", "after": "#0072b2", "bf16": "#7f8790"}
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b3d2e", "#2f4b7c")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

matplotlib.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "text.parse_math": False,  # names and titles may contain `$`
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "figure.facecolor": PAGE,
        "axes.facecolor": "none",
        "savefig.facecolor": PAGE,
        "svg.fonttype": "none",
        "svg.hashsalt": "fp8lab",
        "path.simplify": True,
    }
)


# Axes keep these functions, and figures are pickled between processes, so they must not be lambdas.


def _scaled(size: float, value: float, _: int) -> str:
    return f"{value / size:g}"


def byte_axis(axes: Axes, greatest: float, which: str = "y") -> None:
    size, name = units.scale_of(greatest)
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    # Choose ticks that are round numbers in the shown unit.
    low, high = (axes.get_ylim if which == "y" else axes.get_xlim)()
    ticks = [
        tick * size
        for tick in MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(low / size, high / size)
        if low <= tick * size <= high
    ]
    axis.set_ticks(ticks)
    axis.set_major_formatter(FuncFormatter(functools.partial(_scaled, size)))
    (axes.set_ylabel if which == "y" else axes.set_xlabel)(
        f"bytes, {name} (2^{ {'B': 0, 'KiB': 10, 'MiB': 20, 'GiB': 30}[name]})" if name != "B" else "bytes, B"
    )


def with_legend(figure: Figure, rows_of_legend: int, height: float = 0.19) -> tuple[Any, Axes]:
    """Splits a figure into a grid for panels and, below it, axes for a legend; `height` is inches per row of the
    legend."""
    total = figure.get_figheight()
    below = height * rows_of_legend
    outer = figure.add_gridspec(2, 1, height_ratios=(total - below, below))
    room = figure.add_subplot(outer[1])
    room.axis("off")
    return outer[0], room


def legend(room: Axes, handles: list[Any], columns: int) -> None:
    room.legend(handles=handles, loc="upper left", ncols=columns, borderaxespad=0, bbox_to_anchor=(0, 1))


def short(text: str, length: int) -> str:
    """Shortens `text` by cutting its middle, because names of one kind often differ only at the end."""
    if len(text) <= length:
        return text
    end = (length - 1) // 3
    return text[: length - 1 - end] + "…" + text[-end:]


def line_style(number: int, label: str) -> dict[str, Any]:
    """The style of a line. Colour, marker and dash all differ, so that lines do not differ by colour only."""
    return {
        "color": SERIES[number % len(SERIES)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
        "label": label,
        "linewidth": 1.3,
        "markersize": 4,
    }
