"""Paints plots with matplotlib."""

import io
import re
from collections.abc import Callable
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

import panels
import units
from choice import RatioData
from figures import HolderData, HostData, Plot, WireData
from parity_figures import LossData, NoiseData
from style import (
    DASHES,
    INK,
    PAGE,
    SERIES,
    SIDES,
    THEME,
    byte_axis,
    legend,
    line_style,
    short,
    with_legend,
)


def paint_holders(data: HolderData) -> Figure:
    rows = len(data.holders)
    figure = Figure(figsize=(11, 1.2 + 0.13 * rows * (len(data.arms) + 1)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(data.arms)
    for number, (arm, sizes) in enumerate(zip(data.arms, data.sizes)):
        places = [row + (number - (len(data.arms) - 1) / 2) * height for row in range(rows)]
        axes.barh(places, sizes, height * 0.92, color=SIDES[arm], label=arm)
        for place, size in zip(places, sizes):
            axes.annotate(
                units.byte_text(size), (size, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=6.5
            )
    axes.set_yticks(range(rows), [short(name, 78) for name in data.holders], fontsize=7.5)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    greatest = max(max(row) for row in data.sizes)
    axes.set_xlim(0, greatest * 1.12 or 1)
    byte_axis(axes, greatest, "x")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))  # outside, because any bar may be the longest
    return figure


def paint_wire(data: WireData) -> Figure:
    figure = Figure(figsize=(11, 4.1), layout="constrained")
    grid, room = with_legend(figure, 1)
    axes = figure.add_subplot(grid)
    parts = {
        part: (colour, hatch)
        for part, colour, hatch in zip(data.parts, ("#0072b2", "#f0c542", "#8fd6bd", "#9e2f5f"), ("", "///", "", "..."))
    }
    at, ticks, greatest = 0.0, [], 0.0
    for group, arms in zip(data.groups, data.bars):
        start = at
        for arm, sizes in arms:
            bottom = 0.0
            for part, size in zip(data.parts, sizes):
                if size is None:
                    continue
                colour, hatch = parts[part]
                axes.bar(at, size, 0.8, bottom=bottom, color=colour, hatch=hatch, edgecolor=PAGE, linewidth=0.4)
                bottom += size
            axes.text(
                at,
                bottom,
                ("" if len(arms) == 1 else f"{arm}\n") + units.byte_text(bottom),
                ha="center",
                va="bottom",
                fontsize=7,
            )
            greatest = max(greatest, bottom)
            at += 1
        ticks.append((start + at - 1) / 2)
        at += 0.6
    axes.set_xticks(ticks, data.groups)
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, greatest * 1.18 or 1)
    byte_axis(axes, greatest)
    handles = [Patch(facecolor=colour, hatch=hatch, edgecolor=PAGE, label=part) for part, (colour, hatch) in parts.items()]
    legend(room, handles, 4)
    return figure


def _nanoseconds(value: float, _: int) -> str:
    return units.nanosecond_text(value)


def _some_nanoseconds(value: float, _: int) -> str:
    return units.nanosecond_text(value) if str(value)[0] in "25" else ""


def _percent(value: float, _: int) -> str:
    return f"{100 * value:.3g} %"


def _some_percents(value: float, _: int) -> str:
    return _percent(value, _) if f"{value:e}"[0] in "25" else ""


def paint_host(data: HostData) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.subplots()
    recipes = list(dict.fromkeys(recipe for recipe, _, _ in data.curves))
    one_arm = len({arm for _, arm, _ in data.curves}) == 1
    for recipe, arm, samples in data.curves:
        shares = [(i + 1) / len(samples) for i in range(len(samples))]
        number = recipes.index(recipe)
        style, colour = DASHES[number % len(DASHES)], SERIES[number % len(SERIES)] if one_arm else SIDES[arm]
        axes.step(samples, shares, where="post", color=colour, linestyle=style, linewidth=1.5, label=f"{recipe}, {arm}")
        middle = (
            samples[len(samples) // 2]
            if len(samples) % 2
            else (samples[len(samples) // 2 - 1] + samples[len(samples) // 2]) / 2
        )
        axes.plot([middle], [0.5], marker="|", color=colour, markersize=13, markeredgewidth=2.2)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_nanoseconds))
    axes.xaxis.set_minor_formatter(FuncFormatter(_some_nanoseconds))
    axes.tick_params(axis="x", which="minor", labelsize=7.5)
    axes.grid(axis="x", visible=True, which="both")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.set_ylabel("share of layers and steps")
    axes.set_xlabel("host time before a layer's first kernel")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def paint_loss(data: LossData) -> Figure:
    figure = Figure(figsize=(11, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    nan = float("nan")
    steps = data.numbers(data.reference)
    reference = [nan if value is None else value for value in data.reference]
    upper.plot(steps, reference, color=INK, linewidth=2.2, label="bf16")
    marks = max(1, len(reference) // 12)
    gaps_seen = False
    for number, (label, losses) in enumerate(data.curves):
        values = [nan if value is None else value for value in losses]
        style = line_style(number, label) | {"markevery": (number % marks, marks)}
        upper.plot(data.numbers(losses), values, **style)
        gaps = data.distances(losses)
        if any(gap is not None for gap in gaps):
            gaps_seen = True
            lower.plot(data.numbers(losses)[: len(gaps)], [nan if gap is None else gap for gap in gaps], **style)
    upper.set_ylabel("loss")
    lower.set_ylabel("distance from BF16")
    lower.set_xlabel("step")
    lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    if gaps_seen:
        lower.set_yscale("log")
        lower.yaxis.set_major_formatter(FuncFormatter(_percent))
        # Label only powers of ten, unless the axis is so short that labels between them have room.
        low, high = lower.get_ylim()
        lower.yaxis.set_minor_formatter(FuncFormatter(_some_percents) if high < 30 * low else NullFormatter())
    else:
        lower.text(0.5, 0.5, "every loss equals BF16's", transform=lower.transAxes, ha="center")
        lower.set_yticks([])
    upper.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02))
    return figure


def paint_noise(data: NoiseData) -> Figure:
    most = max(len(names) for _, names, _ in data.panels)
    figure = Figure(figsize=(11, max(2.6, 1.6 + 0.19 * most)), layout="constrained")
    grid, room = with_legend(figure, 1)
    panels = grid.subgridspec(
        1, len(data.panels), width_ratios=[1 if len(n) == 1 else 3 for _, n, _ in data.panels]
    ).subplots(squeeze=False)[0]
    for panel, (of, names, rows) in zip(panels, data.panels):
        for number, (recipe, values) in enumerate(zip(data.recipes, rows)):
            points = [(value, row) for row, value in enumerate(values) if value is not None]
            if points:
                panel.plot(
                    [x for x, _ in points], [y for _, y in points], **line_style(number, recipe) | {"linestyle": "none"}
                )
        panel.set_yticks(range(len(names)), [short(name, 30) for name in names], fontsize=7)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.grid(axis="x", visible=True)
        panel.set_title(of)
        panel.set_xlabel("SQNR, dB")
        panel.margins(x=0.12)
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    legend(room, list(handles.values()), len(handles) or 1)
    return figure


def paint_ratio(data: RatioData) -> Figure:
    figure = Figure(figsize=(11, 1 + 0.24 * len(data.rows)), layout="constrained")
    axes = figure.subplots()
    what = list(dict.fromkeys(to for _, to, _ in data.rows))
    for row, (_, to, value) in enumerate(data.rows):
        number = what.index(to)
        axes.barh(row, value, 0.72, color=SERIES[number % len(SERIES)])
        axes.annotate(
            f"{value:.2f} of {to}", (value, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
        )
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.text(1, -0.75, data.line, ha="center", va="bottom", fontsize=7.5)
    axes.set_yticks(range(len(data.rows)), [short(name, 70) for name, _, _ in data.rows], fontsize=7.5)
    axes.set_ylim(len(data.rows) - 0.4, -0.6)
    axes.set_xlim(0, max(1.1, max(value for _, _, value in data.rows) * 1.15))
    axes.grid(axis="x", visible=True)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"ratio to {data.line} (1)")
    return figure


PAINTERS: dict[str, Callable[[Any], Figure]] = {
    "holders": paint_holders,
    "wire": paint_wire,
    "host": paint_host,
    "loss": paint_loss,
    "noise": paint_noise,
    "ratio": paint_ratio,
}


def paint(plot: Plot) -> Figure:
    """Paints a plot and lays it out once for all formats. The Agg canvas caches the sizes of texts from layout to
    PNG."""
    figure = PAINTERS[plot.kind](plot.data)
    FigureCanvasAgg(figure)
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)  # with any engine every format would be drawn twice
    return figure


def svg_of(figure: Figure) -> str:
    """The figure, with paths to a tenth of a pixel, which makes two thirds of the bytes."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), out.getvalue())


def draw(plot: Plot) -> tuple[str, str]:
    """A plot as SVG file and as elements of the page."""
    if plot.kind == "timeline":
        return panels.document(plot.data), in_theme(panels.for_page(plot.data))
    svg = svg_of(paint(plot))
    return svg, themed(svg, plot.name)


def in_theme(svg: str) -> str:
    for colour, variable in THEME.items():
        svg = svg.replace(colour, variable)
    return svg


def themed(svg: str, name: str) -> str:
    """The SVG element for an HTML page: with the theme's colours, unique ids, and no metadata."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = in_theme(svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", svg, count=1), count=1
    )
