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
    spread: float  # share of the largest value


# Compared in every cell that has them, in addition to the metrics of its gates.
COMPARED = (
    "memory.peak_bytes",
    "memory.retained_bytes",
    "traffic.all_gather_bytes",
    "traffic.collectives",
    "parity.weights_moved",
    "time.step_ms",
)


CORPUS = "training.corpus"


def _keys(cell: Cell, of_text: bool) -> dict[str, Any]:
    """The keys that define a cell, wherever it runs. `of_text`: its corpus is what the file holds, not its path."""
    keys = {key: value for key, value in cell.record["config"].items() if key != "device"}
    return keys | {CORPUS: cell.record["text_checksum"]} if of_text else keys


def differing_keys(a: Cell, b: Cell) -> dict[str, tuple[Any, Any]]:
    """The keys in which two cells differ, as `fp8lab compare` finds them. A key that one record lacks is ignored: older
    versions have fewer keys."""
    of_text = bool(a.record.get("text_checksum") and b.record.get("text_checksum"))
    first, second = _keys(a, of_text), _keys(b, of_text)
    return {key: (value, second[key]) for key, value in first.items() if key in second and second[key] != value}


def by_name(sets: list[ResultSet]) -> dict[str, list[list[Cell]]]:
    """The cells of each name without the device, in groups of equal keys."""
    out: dict[str, list[list[Cell]]] = {}
    for results in sets:
        for cell in results.cells:
            axes = {name: value for name, value in cell.record["axes"].items() if name != "device"}
            groups = out.setdefault(f"{cell.scenario}/{','.join(f'{name}={value}' for name, value in axes.items())}", [])
            group = next((group for group in groups if not differing_keys(group[0], cell)), None)
            if group is None:
                groups.append([cell])
            else:
                group.append(cell)
    return out


def differences(sets: list[ResultSet]) -> tuple[list[Difference], int]:
    """Figures of equal cells that differ, the widest first, and the number of those that are the same."""
    places: dict[tuple[str, int, str, str], dict[tuple[int, str], tuple[Cell, Figure]]] = {}
    for name, groups in by_name(sets).items():
        for number, cell in ((number, cell) for number, group in enumerate(groups) for cell in group):
            metrics = dict.fromkeys([gate["metric"] for gate in cell.record["gates"] if gate["metric"]] + [*COMPARED])
            for arm in ARMS:
                for metric in metrics:
                    figure = cell.figure(arm, metric)
                    if figure.value is not None:
                        place = places.setdefault((name, number, arm, metric), {})
                        place[cell.results.index, cell.device] = (cell, figure)
    out, equal = [], 0
    for (key, _, arm, metric), found in places.items():
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
    of the others, or why there are none."""
    columns: list[tuple[int, str]] = sorted({(results.index, cell.device) for results in sets for cell in results.cells})
    found, equal = differences(sets)
    rows = [
        [cell_link(next(iter(one.found.values()))[0], one.cell), Text(one.arm), Text(one.metric, look="code")]
        + [
            (
                shown(one.metric, one.found[column][1])
                if column in one.found
                else Text(units.ABSENT, None, "not in this set, or with other keys", look="absent")
            )
            for column in columns
        ]
        + [Text(f"{100 * one.spread:.3g} %", one.spread, look="number")]
        for one in found
    ]
    labels = [f"{sets[index].label}: {device}" for index, device in columns]
    note = f"{equal:,} figures of equal cells are the same wherever they were measured; {len(rows):,} differ."
    if len(columns) < 2:
        note = "there is one result set, on one device"
    elif not found and not equal:
        note = "no two sets or devices have a figure of the same cell"
    return Table("compare", ["cell", "arm", "metric", *labels, "spread"], rows, caption=note, search=True), note


MOST_KEYS = 3  # named of a cell


def redefined_table(sets: list[ResultSet]) -> Table:
    """Cells of one name whose keys differ between sets. They are different cells, and no figure of theirs is compared."""
    rows = []
    for name, groups in by_name(sets).items():
        if len(groups) < 2:
            continue
        places = (", ".join(f"{cell.results.label}: {cell.device}" for cell in group) for group in groups)
        words = _key_words([group[0] for group in groups])
        rows.append(
            [
                cell_link(groups[0][0], name),
                Text(f"same name, different keys: {words}", look="prose"),
                Text(" / ".join(places)),
            ]
        )
    caption = "Redefined: cells with different keys are different cells, and their figures are not compared." if rows else ""
    return Table("redefined", ["cell", "why not compared", "values of"], rows, caption=caption, search=True)


def _key_words(cells: list[Cell]) -> str:
    """The keys in which any of the cells differ, each with its distinct values."""
    keys = dict.fromkeys(key for i, a in enumerate(cells) for b in cells[i + 1 :] for key in differing_keys(a, b))
    of_text = all(cell.record.get("text_checksum") for cell in cells)
    of_cells = [_keys(cell, of_text) for cell in cells]
    words = [f"{key} {' / '.join(_value_text(one.get(key)) for one in of_cells)}" for key in [*keys][:MOST_KEYS]]
    return ", ".join(words + ([f"{len(keys) - MOST_KEYS} more"] if len(keys) > MOST_KEYS else []))


def _value_text(value: Any) -> str:
    return units.ABSENT if value in (None, "") else value if isinstance(value, str) else json.dumps(value)


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
