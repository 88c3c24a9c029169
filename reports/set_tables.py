"""Tables of result sets: their contents, their differences, and the environments of their runs."""

import dataclasses
import json
from typing import Any

import bench as benches
import units
from load import Cell, Figure, Problem, ResultSet
from records import ARMS
from tables import Table, Text, cell_link, counts, named, number, shown


def sets_table(sets: list[ResultSet]) -> Table:
    rows = []
    for results in sets:
        environment = results.environment or {}
        cpu = (environment.get("cpu") or {}).get("model")
        cuda = str((environment.get("devices") or {}).get("cuda", ""))
        gpu = "" if not cuda or cuda.startswith("unavailable") else cuda.splitlines()[0]
        full = {True: "yes", False: "no: stopped or cut off", None: units.ABSENT}[results.complete]
        rows.append(
            [
                Text(results.label),
                Text(", ".join(results.devices) or units.ABSENT),
                named(results.commit),
                Text(gpu or cpu or units.ABSENT),
                number(len(results.cells), "1"),
                counts(results.cells),
                Text(full, look="bad" if results.complete is False else ""),
                Text(results.path, look="code"),
            ]
        )
    return Table("sets", ["set", "devices", "commit", "GPU or CPU", "cells", "verdicts", "complete", "path"], rows)


@dataclasses.dataclass
class Difference:
    """A figure of equal cells that several sets, or devices, do not agree on."""

    cell: str  # its id without the device
    arm: str
    metric: str
    found: dict[tuple[int, str], tuple[Cell, Figure]]  # by set and device
    spread: float  # of the largest value


# Compared in every cell that has them, beside the metrics of its gates.
COMPARED = (
    "memory.peak_bytes",
    "memory.retained_bytes",
    "traffic.all_gather_bytes",
    "traffic.collectives",
    "parity.weights_moved",
    "time.step_ms",
)


def differences(sets: list[ResultSet]) -> tuple[list[Difference], int]:
    """Figures of equal cells that differ, the widest first, and the number of those that are the same."""
    places: dict[tuple[str, str, str], dict[tuple[int, str], tuple[Cell, Figure]]] = {}
    for results in sets:
        for cell in results.cells:
            axes = {name: value for name, value in cell.record["axes"].items() if name != "device"}
            key = f"{cell.scenario}/{','.join(f'{name}={value}' for name, value in axes.items())}"
            metrics = dict.fromkeys([gate["metric"] for gate in cell.record["gates"] if gate["metric"]] + [*COMPARED])
            for arm in ARMS:
                for metric in metrics:
                    figure = cell.figure(arm, metric)
                    if figure.value is not None:
                        places.setdefault((key, arm, metric), {})[results.index, cell.device] = (cell, figure)
    out, equal = [], 0
    for (key, arm, metric), found in places.items():
        if len(found) < 2:
            continue
        values = [figure.value for _, figure in found.values() if figure.value is not None]
        if len(set(values)) == 1:
            equal += 1
            continue
        spread = (max(values) - min(values)) / max(abs(value) for value in values)
        out.append(Difference(key, arm, metric, found, spread))
    return sorted(out, key=lambda difference: -difference.spread), equal


def compare_table(sets: list[ResultSet]) -> tuple[Table, str]:
    """Figures of equal cells in several sets or on several devices: a row for each that differs, a line with the number
    of the others."""
    columns: list[tuple[int, str]] = sorted({(results.index, cell.device) for results in sets for cell in results.cells})
    found, equal = differences(sets)
    rows = [
        [cell_link(next(iter(one.found.values()))[0], one.cell), Text(one.arm), Text(one.metric, look="code")]
        + [
            (
                shown(one.metric, one.found[column][1])
                if column in one.found
                else Text(units.ABSENT, None, "not in this set", look="absent")
            )
            for column in columns
        ]
        + [Text(f"{100 * one.spread:.3g} %", one.spread, look="number")]
        for one in found
    ]
    labels = [f"{sets[index].label}: {device}" for index, device in columns]
    note = f"{equal:,} figures of equal cells are the same wherever they were measured; {len(rows):,} differ."
    return Table("compare", ["cell", "arm", "metric", *labels, "spread"], rows, caption=note, search=True), note


def environment_table(sets: list[ResultSet], bench: benches.Bench) -> Table:
    columns = [(results.label, _flat(results.environment or {})) for results in sets]
    columns += [(source, _flat(context)) for source, context in bench.contexts]
    keys = list(dict.fromkeys(key for _, flat in columns for key in flat))
    rows = []
    for key in keys:
        values = [flat.get(key) for _, flat in columns]
        differ = len({value for value in values if value is not None}) > 1
        rows.append(
            [Text(key, look="code")]
            + [Text(units.ABSENT, None, "not recorded", look="absent") if value is None else Text(value) for value in values]
            + [Text("differs" if differ else "", look="bad" if differ else "")]
        )
    table = Table("environment", ["what", *(label for label, _ in columns), "differs"], rows)
    return table if len(columns) > 1 else table.without("differs")


def _flat(entry: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(entry, dict):
        return {
            key: value
            for name, child in entry.items()
            for key, value in _flat(child, f"{prefix}.{name}" if prefix else name).items()
        }
    if entry is None or entry == "":
        return {}
    if isinstance(entry, (bool, list)):
        return {prefix: json.dumps(entry)}
    text = (
        f"{units.byte_text(entry)} ({units.exact(entry, 'B')})" if prefix.endswith("bytes") and isinstance(entry, (int, float)) else str(entry)
    )
    return {prefix: text}


def problems_table(problems: list[Problem]) -> Table:
    return Table(
        "problems",
        ["file", "record", "what is wrong"],
        [[Text(problem.file, look="code"), Text(problem.record), Text(problem.text, look="bad")] for problem in problems],
    )
