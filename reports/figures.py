"""The data of figures of memory, traffic and the host, a few per fix: a Plot from cells, which plot.py draws."""

import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import timeline as timelines
from load import Cell, Problem, ResultSet
from records import ARMS

LONGEST_NAME = 180  # common file systems allow names of at most 255 bytes


@dataclasses.dataclass
class Plot:
    """A figure to be drawn. `kind` names its painter in plot.py, and `data` is the painter's argument."""

    name: str
    section: str
    kind: str
    title: str
    caption: str
    data: object
    sets: list[str] = dataclasses.field(default_factory=list)  # labels of the result sets that it shows


def once(plots: Iterable[Plot]) -> list[Plot]:
    """Merges equal plots of several result sets into one, which names all of the sets."""
    out: list[Plot] = []
    for plot in plots:
        same = next((p for p in out if (p.kind, p.title, p.data) == (plot.kind, plot.title, plot.data)), None)
        if same:
            same.sets += plot.sets
        else:
            out.append(plot)
    return out


def by_scenario(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    out: dict[str, list[Cell]] = {}
    for cell in cells:
        out.setdefault(cell.scenario, []).append(cell)
    return out


def slug(text: str) -> str:
    """`text` as part of a file name. A name that is cut ends in a hash of the full text, so that it stays unique."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()
    if len(plain) <= LONGEST_NAME:
        return plain
    end = "-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return plain[: LONGEST_NAME - len(end)] + end


# --- memory timelines -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class TimelineData:
    arms: list[str]
    bands: list[timelines.Band]
    axis: timelines.Axis
    curves: list[timelines.Curve]
    unit_of: int  # the largest byte count, which determines the unit


MOST_BROKEN = 12  # cells with a failed gate that are drawn, of a set in which everything is broken
MOST_BANDS = 9
POINTS = 320


def broken_cells(results: ResultSet, metrics: str = "memory.") -> list[Cell]:
    """Cells with a failed gate on a metric whose name begins with `metrics`, the first of each scenario before the second
    of any, and so on."""
    broken = [
        cell
        for cell in results.cells
        if any(gate["pass"] is False and (gate["metric"] or "").startswith(metrics) for gate in cell.record["gates"])
    ]
    ranked = [(number, cell) for cells in by_scenario(broken).values() for number, cell in enumerate(cells)]
    return [cell for _, cell in sorted(ranked, key=lambda pair: pair[0])]


def timeline_cells(sets: list[ResultSet], per_fix: int) -> list[Cell]:
    """For each result set the cells of any kind with a failed gate on memory, with or without a timeline;
    then for each fix the `per_fix` cells of its findings about memory, largest effect first; then for each scenario
    without a fix, and for each fix if the results hold no findings, the cells with the largest peak."""
    out = []
    for results in sets:
        broken = broken_cells(results)[:MOST_BROKEN]
        drawn = {cell.id for cell in broken}
        out += broken
        ranks = {finding.cell: at for at, finding in enumerate(results.findings or []) if finding.metric.startswith("memory.")}
        groups: dict[tuple[str, str], list[tuple[tuple[int, float], Cell]]] = {}
        for cell in results.cells:
            if (cell.fix and results.findings is not None and cell.id not in ranks) or not _is_drawable(cell):
                continue
            peak = cell.figure("after", "memory.peak_bytes").value or 0.0
            group = (cell.fix, "" if cell.fix else cell.scenario)
            groups.setdefault(group, []).append(((ranks.get(cell.id, len(ranks)), -peak), cell))
        for found in sorted(groups.values(), key=lambda found: min(rank for (rank, _), _ in found)):
            chosen = [cell for _, cell in sorted(found, key=lambda pair: pair[0])][:per_fix]
            out += [cell for cell in chosen if cell.id not in drawn]
    return out


def _is_drawable(cell: Cell) -> bool:
    paths = timeline_paths(cell)
    return {"before", "after"} <= paths.keys() if cell.fix else bool(paths)


def timeline_paths(cell: Cell) -> dict[str, pathlib.Path]:
    """The files with the timelines of a cell's figure, by arm. BF16's shows nothing about a fix."""
    paths = {arm: cell.timeline(arm) for arm in (("before", "after") if cell.fix else ("before", "after", "bf16"))}
    return {arm: path for arm, path in paths.items() if path}


def read_timelines(paths: dict[str, pathlib.Path]) -> tuple[TimelineData | None, dict[str, str]]:
    """The data of a figure, if a timeline can be read, and by arm what is wrong with those that cannot."""
    faults, read = {}, {}
    for arm, path in paths.items():
        try:
            read[arm] = timelines.read(path)
        except timelines.TimelineError as error:
            faults[arm] = str(error)
    if not read:
        return None, faults
    chosen = timelines.bands(list(read.values()), MOST_BANDS)
    axis = timelines.shared_axis(list(read.values()))
    curves = [timelines.curve(one, chosen, axis, POINTS) for one in read.values()]
    return TimelineData(list(read), chosen, axis, curves, max(curve.peak[1] for curve in curves)), faults


def timeline_name(cell: Cell) -> str:
    return f"timeline-{cell.results.index}-{slug(cell.id)}"


def timeline_plot(
    cell: Cell, data: TimelineData | None, faults: dict[str, str], problems: list[Problem]
) -> Plot | None:
    for arm, fault in faults.items():
        problems.append(Problem(str(cell.timeline(arm) or cell.results.path), f"timeline {cell.id}, {arm}", fault))
    if data is None:
        return None
    gap = "".join(f" The arm {arm} could not be read." for arm in faults)
    other = " The dashed line is the other arm." if len(data.arms) == 2 else ""
    caption = (
        "Bytes alive by holder along the events of the run; every phase is as wide as its events are many. Warm colours are "
        "bytes that should be gone when backward ends, cool ones stay." + other + gap
    )
    return Plot(
        timeline_name(cell),
        "timelines",
        "timeline",
        f"{cell.fix or cell.record['title']}: {cell.id}",
        caption,
        data,
        [cell.results.label],
    )


# --- holders at the peak ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class HolderData:
    holders: list[str]
    arms: list[str]
    sizes: list[list[float]]  # by arm, by holder


def _by_owner(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Bytes by kind and owner. What a holder keeps, `context of layers[*].attention: q, k`, differs between arms."""
    out: dict[str, float] = {}
    for entry in entries:
        owner = entry["holder"].partition(": ")[0]
        out[owner] = out.get(owner, 0.0) + float(entry["bytes"])
    return out


def holder_plot(cell: Cell, most: int = 10) -> Plot | None:
    arms = [arm for arm in ("before", "after", "bf16") if (cell.arm(arm) or {}).get("peak_by_holder")]
    held = [_by_owner(cell.record["arms"][arm]["peak_by_holder"]) for arm in arms]
    names = sorted(
        {name for one in held for name in one}, key=lambda name: (-max(one.get(name, 0.0) for one in held), name)
    )
    if not names:
        return None
    sizes = [[one.get(name, 0.0) for name in names[:most]] for one in held]
    shown = names[:most]
    if len(names) > most:
        shown = [*shown, f"{len(names) - most} others"]
        sizes = [row + [sum(one.get(name, 0.0) for name in names[most:])] for row, one in zip(sizes, held)]
    caption = "Who holds the bytes that are alive at the peak, by owner; equal owners in all layers are one."
    if arms[:2] == ["before", "after"] and held[0] == held[1]:
        caption += " Before and after hold the same at the peak"
        is_leak = (cell.arm("before") or {}).get("retained_by_holder")
        caption += "; Holders after backward has what stays." if is_leak else "."
    return Plot(
        f"holders-{cell.results.index}-{slug(cell.id)}",
        "holders",
        "holders",
        f"{cell.fix or cell.record['title']}: {cell.id}",
        caption,
        HolderData(shown, arms, sizes),
        [cell.results.label],
    )


# --- bytes on the wire ------------------------------------------------------------------------------------------------------

WIRE = (
    ("traffic.all_gather_payload_bytes", "all-gather, values"),
    ("traffic.all_gather_scale_bytes", "all-gather, scales"),
    ("traffic.reduce_scatter_bytes", "reduce-scatter"),
    ("traffic.all_reduce_bytes", "all-reduce"),
)


@dataclasses.dataclass
class WireData:
    groups: list[str]
    bars: list[list[tuple[str, list[float | None]]]]  # by group: (arm, bytes by part)
    parts: list[str]


def wire_plots(sets: list[ResultSet], most: int = 4) -> list[Plot]:
    """A plot for each of the scenarios that gather the most bytes; it shows, by recipe, the cell that gathers the
    most."""
    found: list[tuple[float, str, list[Cell]]] = []
    for results in sets:
        for scenario, cells in by_scenario(results.cells).items():
            best: dict[str, Cell] = {}
            for cell in cells:
                if _gathered(cell) > (_gathered(best[cell.recipe]) if cell.recipe in best else 0.0):
                    best[cell.recipe] = cell
            if len(best) > 1:
                found.append((max(map(_gathered, best.values())), scenario, list(best.values())))
    found.sort(key=lambda entry: (not any(cell.fix for cell in entry[2]), -entry[0]))
    return once(_wire_plot(scenario, cells) for _, scenario, cells in found)[:most]


def _gathered(cell: Cell) -> float:
    return max((cell.figure(arm, "traffic.all_gather_bytes").value or 0.0 for arm in ("before", "after")), default=0.0)


def _wire_plot(scenario: str, cells: list[Cell]) -> Plot:
    cells.sort(key=lambda cell: (cell.recipe != "bf16", cell.recipe))
    bars = [
        [
            (arm, [cell.figure(arm, metric).value for metric, _ in WIRE])
            for arm in ("before", "after")
            if cell.figure(arm, "traffic.all_gather_bytes").value is not None
        ]
        for cell in cells
    ]
    first = cells[0]
    shown = "; ".join(f"{cell.recipe}: {cell.point}" for cell in cells)
    return Plot(
        f"wire-{first.results.index}-{slug(scenario)}",
        "wire",
        "wire",
        f"{scenario}: {first.record['title']}",
        "Bytes of the full arrays that the collectives of one rank gather or reduce in a step; a rank sends a part of them. "
        f"Shown of each recipe is the cell that gathers most ({shown}).",
        WireData([cell.recipe for cell in cells], bars, [part for _, part in WIRE]),
        [first.results.label],
    )


# --- pre-forward time -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class HostData:
    curves: list[tuple[str, str, list[float]]]  # recipe, arm, ascending nanoseconds


def host_plots(sets: list[ResultSet], most: int = 3) -> list[Plot]:
    out = []
    for results in sets:
        for scenario, cells in by_scenario(results.cells).items():
            curves: list[tuple[str, str, list[float]]] = []
            shown: dict[str, str] = {}
            for cell in cells:
                if cell.recipe in shown:
                    continue
                found = len(curves)
                for arm in ("before", "after"):
                    samples = [
                        v
                        for v in ((cell.arm(arm) or {}).get("samples") or {}).get("host.pre_forward_ns", [])
                        if v is not None
                    ]
                    if samples:
                        curves.append((cell.recipe, arm, samples))
                if len(curves) > found:
                    shown[cell.recipe] = cell.point
            if curves:
                caption = (
                    "Host time from entering a sharded layer to its first kernel, collectives left out: the share of layers "
                    "that took at most so long. The tick on each curve is its median. Shown: "
                    + "; ".join(f"{recipe}: {point}" for recipe, point in shown.items())
                )
                title = f"{scenario}: {cells[0].record['title']}"
                name = f"host-{results.index}-{slug(scenario)}"
                out.append(Plot(name, "host", "host", title, caption + ".", HostData(curves), [results.label]))
    return out[:most]


# --- why a section is empty: what results lack, or what the choice of cells leaves out -----------------------------------------

# What timeline_cells() draws, the other way round.
_NOT_CHOSEN = "no finding here is about memory, and no gate on memory failed"


def _any_arm(sets: list[ResultSet], key: str) -> bool:
    return any((cell.arm(arm) or {}).get(key) for results in sets for cell in results.cells for arm in ARMS)


def _chosen(sets: list[ResultSet]) -> list[Cell]:
    return [cell for cell in timeline_cells(sets, 1) if timeline_paths(cell)]


def _has_timelines(sets: list[ResultSet]) -> bool:
    return any(cell.timeline(arm) for results in sets for cell in results.cells for arm in ARMS)


def why_no_timelines(sets: list[ResultSet]) -> str:
    if not _has_timelines(sets):
        return "no result set holds timelines of memory"
    if _chosen(sets):
        return "none was asked for (--figures), or none of those to be drawn could be read"
    return f"{_NOT_CHOSEN}; `--snapshots --cells REGEX` writes the timelines of other cells"


def why_no_holders(sets: list[ResultSet]) -> str:
    if not _any_arm(sets, "peak_by_holder"):
        return "no cell records who holds memory at its peak"
    if not _has_timelines(sets):
        return "no result set holds timelines of memory, and no cell with a failed gate on memory records who holds it"
    if _chosen(sets):
        return "no cell of a memory timeline above records who holds memory at its peak"
    return _NOT_CHOSEN


def why_no_retained(sets: list[ResultSet]) -> str:
    figures = [cell.figure(arm, "memory.retained_bytes") for results in sets for cell in results.cells for arm in ARMS]
    if all(figure.value is None for figure in figures):
        return "no cell measured memory after backward"
    if any(figure.value for figure in figures):
        return "arms retain memory after backward, and none of them records who holds it"
    return "no arm retains memory after backward"


def why_no_noise(sets: list[ResultSet]) -> str:
    if not _any_arm(sets, "noise"):
        return "no cell measured tensors against BF16's"
    return "only cells of a fix measured tensors against BF16's, and those are left out"
