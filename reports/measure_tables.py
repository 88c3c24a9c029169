"""Tables of the measurements of cells and benchmarks."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import bench as benches
import units
from figures import MOST_BROKEN, broken_cells, by_scenario
from load import Cell, Figure, ResultSet
from records import ARMS
from tables import Table, Text, cell_link, number, shown, verdict_text

MOST_HOLDERS = 8  # holders of an arm
RETAINED = "memory.retained_bytes"


def largest_holders(entries: list[dict[str, Any]], most: int = MOST_HOLDERS) -> tuple[list[tuple[str, float]], int, float]:
    """The largest holders with their bytes, the number of the others, and the bytes of those. If there are more than
    `most`, equal holders in all layers are one, as in summary.md."""
    sizes: dict[str, float] = {}
    for entry in entries:
        name = re.sub(r"\[[0-9]+\]", "[*]", entry["holder"]) if len(entries) > most else entry["holder"]
        sizes[name] = sizes.get(name, 0) + entry["bytes"]
    found = sorted(sizes.items(), key=lambda pair: -pair[1])
    return found[:most], len(found[most:]), sum(size for _, size in found[most:])


def _retained(cell: Cell, arm: str) -> list[dict[str, Any]]:
    return (cell.arm(arm) or {}).get("retained_by_holder") or []


def _gated_arms(cell: Cell, metric: str) -> list[str]:
    """The arms that failed gates on a metric are about; a difference is about both sides."""
    sides = {gate["arm"] for gate in cell.record["gates"] if gate["pass"] is False and gate["metric"] == metric}
    return [arm for arm in ARMS if arm in sides or ("difference" in sides and arm != "bf16")]


def _retaining(results: ResultSet) -> list[tuple[Cell, str]]:
    """Cells with a failed gate on retained bytes, and of each scenario and fix the cell that retains most: before the fix
    if it does then, else after it."""
    found = [(cell, arm) for cell in broken_cells(results, RETAINED)[:MOST_BROKEN] for arm in _gated_arms(cell, RETAINED)]
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in results.cells:
        groups.setdefault((cell.scenario, cell.fix), []).append(cell)
    for cells in groups.values():
        for arm in ARMS:
            best = max(cells, key=lambda cell: sum(entry["bytes"] for entry in _retained(cell, arm)))
            if _retained(best, arm):
                found.append((best, arm))
                break
    return list({(cell.id, arm): (cell, arm) for cell, arm in found}.values())


def retained_table(sets: list[ResultSet]) -> Table:
    rows = []
    for results in sets:
        for cell, arm in _retaining(results):
            head = [verdict_text(cell), cell_link(cell, cell.id), Text(results.label), Text(arm)]
            holders, others, rest = largest_holders(_retained(cell, arm))
            rows += [[*head, Text(holder, look="code"), number(size, "B")] for holder, size in holders]
            if others:
                rows.append([*head, Text(f"and {others:,} more"), number(rest, "B")])
    left = sum(max(0, len(broken_cells(results, RETAINED)) - MOST_BROKEN) for results in sets)
    caption = f"{left:,} more cells failed a gate on {RETAINED}; Needs attention lists them." if left else ""
    return Table("retained", ["verdict", "cell", "set", "arm", "holder", "bytes"], rows, caption=caption)


WIRE = (
    "traffic.all_gather_payload_bytes",
    "traffic.all_gather_scale_bytes",
    "traffic.reduce_scatter_bytes",
    "traffic.all_reduce_bytes",
    "traffic.collectives",
)


def _arms(
    sets: list[ResultSet], arms: Sequence[str], metrics: Sequence[str]
) -> Iterator[tuple[Cell, str, list[Figure]]]:
    """All arms of all cells, with their figures of `metrics`."""
    for results in sets:
        for cell in results.cells:
            for arm in arms:
                yield cell, arm, [cell.figure(arm, metric) for metric in metrics]


def wire_table(sets: list[ResultSet]) -> Table:
    rows = []
    for cell, arm, figures in _arms(sets, ARMS, WIRE):
        if figures[0].value is not None:
            rows.append(
                [cell_link(cell, cell.scenario), Text(cell.recipe), Text(cell.device), Text(arm), Text(cell.results.label)]
                + [number(figure.value, figure.unit, figure.reason) for figure in figures]
                + [Text(cell.point, look="code")]
            )
    return Table(
        "wire",
        [
            "scenario",
            "recipe",
            "device",
            "arm",
            "set",
            "all-gather, values",
            "all-gather, scales",
            "reduce-scatter",
            "all-reduce",
            "collectives",
            "cell",
        ],
        rows,
        search=True,
    )


TIMES = ("time.step_ms", "time.forward_ms", "time.backward_ms", "time.optimizer_ms")


def _ratio(cell: Cell, to: str) -> Text:
    """The after arm's step time relative to the step time of arm `to`."""
    own, other = cell.figure("after", TIMES[0]), cell.figure(to, TIMES[0])
    if not own.value or not other.value:
        return number(None, "1", own.reason or other.reason)
    return Text(f"{own.value / other.value:.2f}", own.value / other.value, look="number")


def _judged(cell: Cell, arm: str) -> Text:
    gates = [gate for gate in cell.record["gates"] if gate["arm"] == arm and (gate["metric"] or "").startswith("time.")]
    words = {True: "holds", False: "fails", None: "is undecided"}
    return Text("; ".join(f"{gate['text']}: {words[gate['pass']]}" for gate in gates) or "no")


def times_table(sets: list[ResultSet]) -> Table:
    rows = []
    ratios: dict[str, list[float]] = {}
    for cell, arm, figures in _arms(sets, ARMS, TIMES):
        if figures[0].value is None:
            continue
        beside = [number(None, "1", "the after arm's row has it")] * 2
        if arm == "after":
            beside = [_ratio(cell, other) for other in ("bf16", "before")]
        emulated = (cell.arm(arm) or {}).get("emulated") or ""
        recipe = cell.recipe + (" (emulated)" if emulated else "")
        if isinstance(beside[0].sort, float) and cell.device != "meta":  # which computes nothing
            ratios.setdefault(f"{recipe} on {cell.device}", []).append(beside[0].sort)
        rows.append(
            [
                cell_link(cell, cell.scenario),
                Text(recipe, note=emulated),
                Text(cell.device),
                Text(arm),
                Text(cell.results.label),
                *(number(figure.value, figure.unit, figure.reason) for figure in figures),
                *beside,
                _judged(cell, arm),
                Text(cell.point, look="code"),
            ]
        )
    ranges = [
        f"{recipe} {min(found):.2f} to {max(found):.2f} ({len(found):,} cell{'s' * (len(found) != 1)})"
        for recipe, found in ratios.items()
    ]
    caption = f"After's step time relative to BF16's, below 1 is faster: {'; '.join(ranges)}." if ranges else ""
    columns = ["scenario", "recipe", "device", "arm", "set", "step", "forward", "backward", "optimizer"]
    return Table("times", [*columns, "step : BF16's", "step : before's", "judged", "cell"], rows, caption=caption, search=True)


HOST = ("host.pre_forward_ns", "host.pre_forward_allocations", "host.pre_forward_quantizer_copies")


def host_table(sets: list[ResultSet]) -> Table:
    rows = []
    for cell, arm, figures in _arms(sets, ARMS, HOST):
        if figures[0].value is None:
            continue
        samples = [v for v in ((cell.arm(arm) or {}).get("samples") or {}).get(HOST[0], []) if v is not None]
        ranks = [
            number(samples[round(share * (len(samples) - 1))] if samples else None, "ns", "the samples were not kept")
            for share in (0.1, 0.9, 0.99)
        ]
        rows.append(
            [
                cell_link(cell, cell.scenario),
                Text(cell.recipe),
                Text(arm),
                Text(cell.results.label),
                number(figures[0].value, "ns"),
                *ranks,
                number(len(samples) or None, "1", "the samples were not kept"),
                *(number(figure.value, figure.unit, figure.reason) for figure in figures[1:]),
                Text(cell.point, look="code"),
            ]
        )
    return Table(
        "host",
        [
            "scenario",
            "recipe",
            "arm",
            "set",
            "p50",
            "p10",
            "p90",
            "p99",
            "samples kept",
            "allocations",
            "quantizer copies",
            "cell",
        ],
        rows,
    )


PARITY = (
    "parity.loss_gap",
    "parity.output_sqnr_db",
    "parity.grad_sqnr_db",
    "parity.weight_sqnr_db",
    "parity.weights_moved",
    "parity.ranks_equal",
)


def parity_table(sets: list[ResultSet]) -> Table:
    rows = []
    for cell, arm, figures in _arms(sets, ("before", "after"), PARITY):
        if any(figure.value is not None for figure in figures):
            rows.append(
                [cell_link(cell, cell.scenario), Text(cell.recipe), Text(arm), Text(cell.results.label)]
                + [shown(metric, figure) for metric, figure in zip(PARITY, figures)]
                + [Text(cell.point, look="code")]
            )
    return Table(
        "parity",
        [
            "scenario",
            "recipe",
            "arm",
            "set",
            "distance of the last loss",
            "output SQNR",
            "gradient SQNR",
            "weight SQNR",
            "weights moved",
            "ranks equal",
            "cell",
        ],
        rows,
        search=True,
    )


def noise_table(sets: list[ResultSet], most: int) -> Table:
    """The noise of all tensors of cells without a fix, by scenario; at most `most` rows."""
    found = [
        (cell, entry)
        for results in sets
        for cells in by_scenario(cell for cell in results.cells if not cell.fix).values()
        for cell in cells
        for entry in (cell.arm("after") or {}).get("noise") or []
    ]
    rows = [
        [
            Text(cell.recipe),
            Text(entry["tensor"], look="code"),
            Text(entry["of"]),
            number(entry["sqnr_db"], "dB", entry.get("reason", "")),
            Text(cell.results.label),
            cell_link(cell, cell.id),
        ]
        for cell, entry in found[:most]
    ]
    caption = f"The first {most:,} of {len(found):,} rows; the results' own files hold the others." if len(found) > most else ""
    return Table("noise", ["recipe", "tensor", "of", "SQNR", "set", "cell"], rows, caption=caption, search=True)


def ratios_table(bench: benches.Bench) -> Table:
    rows = [
        [
            Text(ratio.name, look="code"),
            Text(ratio.source),
            Text(kind),
            Text(ratio.to),
            number(ratio.value, "1", ratio.reason),
        ]
        for kind, ratios in (("physical bound", benches.to_bounds(bench)), ("peer", benches.to_peers(bench)))
        for ratio in ratios
    ]
    return Table("ratios", ["benchmark", "from", "against", "which", "ratio"], rows, search=True)


def benches_table(bench: benches.Bench) -> Table:
    rows = []
    for peer, found in [("", bench.ours), *bench.peers.items()]:
        for row in found:
            rates = {"bytes_per_second": "B", "flops": "1"}
            rate = [
                (
                    Text(units.ABSENT, look="absent")
                    if row.counters.get(key) is None
                    else Text(
                        (
                            units.figure(row.counters[key], unit) + "/s"
                            if unit == "B"
                            else f"{row.counters[key] / 1e12:.4g} TFLOP/s"
                        ),
                        row.counters[key],
                        units.exact(row.counters[key], unit),
                        look="number",
                    )
                )
                for key, unit in rates.items()
            ]
            rows.append(
                [
                    Text(row.name, look="code"),
                    Text(peer or "fp8lab"),
                    Text(row.source),
                    number(row.nanoseconds, "ns", row.reason),
                    *rate,
                ]
            )
    return Table("benches", ["benchmark", "of", "from", "time", "bytes", "operations"], rows, search=True)
