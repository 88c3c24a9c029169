"""Tables of result sets: their contents, their differences, and the environments of their runs."""

import json
from typing import Any

import bench as benches
import units
from load import Cell, Figure, Problem, ResultSet
from records import ARMS
from tables import Table, Text, cell_link, counts, number, shown


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
                Text(results.commit or units.ABSENT, look="code"),
                Text(gpu or cpu or units.ABSENT),
                number(len(results.cells), "1"),
                counts(results.cells),
                Text(full, look="bad" if results.complete is False else ""),
                Text(results.path, look="code"),
            ]
        )
    return Table("sets", ["set", "devices", "commit", "GPU or CPU", "cells", "verdicts", "complete", "path"], rows)


def compare_table(sets: list[ResultSet]) -> tuple[Table, str]:
    """Figures of equal cells in several sets or on several devices: a row for each that differs, a line with the number
    of the others."""
    columns: list[tuple[int, str]] = sorted({(results.index, cell.device) for results in sets for cell in results.cells})
    places: dict[tuple[str, str, str], dict[tuple[int, str], tuple[Cell, Figure]]] = {}
    for results in sets:
        for cell in results.cells:
            axes = {name: value for name, value in cell.record["axes"].items() if name != "device"}
            key = f"{cell.scenario}/{','.join(f'{name}={value}' for name, value in axes.items())}"
            metrics = dict.fromkeys(
                [gate["metric"] for gate in cell.record["gates"] if gate["metric"]] + ["memory.peak_bytes", "time.step_ms"]
            )
            for arm in ARMS:
                for metric in metrics:
                    figure = cell.figure(arm, metric)
                    if figure.value is not None:
                        places.setdefault((key, arm, metric), {})[results.index, cell.device] = (cell, figure)
    rows, equal = [], 0
    for (key, arm, metric), found in places.items():
        if len(found) < 2:
            continue
        values = [figure.value for _, figure in found.values() if figure.value is not None]
        if len(set(values)) == 1:
            equal += 1
            continue
        spread = (max(values) - min(values)) / max(abs(value) for value in values)
        first = next(iter(found.values()))[0]
        rows.append(
            [cell_link(first, key), Text(arm), Text(metric, look="code")]
            + [
                (
                    shown(metric, found[column][1])
                    if column in found
                    else Text(units.ABSENT, None, "not in this set", look="absent")
                )
                for column in columns
            ]
            + [Text(f"{100 * spread:.3g} %", spread, look="number")]
        )
    rows.sort(key=lambda row: -float(row[-1].sort or 0))
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
    return Table("environment", ["what", *(label for label, _ in columns), ""], rows)


def _flat(entry: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(entry, dict):
        return {
            key: value
            for name, child in entry.items()
            for key, value in _flat(child, f"{prefix}.{name}" if prefix else name).items()
        }
    if entry is None or entry == "":
        return {}
    if isinstance(entry, list):
        return {prefix: json.dumps(entry)}
    text = (
        f"{entry} ({units.byte_text(entry)})" if prefix.endswith("bytes") and isinstance(entry, (int, float)) else str(entry)
    )
    return {prefix: text}


def problems_table(problems: list[Problem]) -> Table:
    return Table(
        "problems",
        ["file", "record", "what is wrong"],
        [[Text(problem.file, look="code"), Text(problem.record), Text(problem.text, look="bad")] for problem in problems],
    )
