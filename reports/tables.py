"""The type of tables, and the tables of verdicts. A figure has its unit, its exact value and the reason if it is
absent."""

import collections
import dataclasses
import re
from typing import Any

import units
from documents import short
from load import Cell, Figure, ResultSet
from records import ARMS, VERDICTS


@dataclasses.dataclass
class Text:
    """One entry of a table. `sort` is its sort key, `note` its tooltip, `link` an anchor of the page."""

    text: str
    sort: float | str | None = None
    note: str = ""
    link: str = ""
    look: str = ""  # good, bad, absent, number, code, prose
    markdown: str = ""  # instead of `text` in Markdown, in which no one can follow the link


@dataclasses.dataclass
class Table:
    name: str
    columns: list[str]
    rows: list[list[Text]]
    anchors: list[str] = dataclasses.field(default_factory=list)  # anchors of the rows, or empty
    caption: str = ""
    search: bool = False
    facets: list[str] = dataclasses.field(default_factory=list)  # columns by whose values rows can be chosen
    written: bool = False  # into the page itself, however many rows there are

    def without(self, column: str) -> "Table":
        if column not in self.columns:
            return self
        at = self.columns.index(column)
        rows = [row[:at] + row[at + 1 :] for row in self.rows]
        return dataclasses.replace(self, columns=self.columns[:at] + self.columns[at + 1 :], rows=rows)

    def shortened(self) -> "Table":
        """Without columns and axes of cells that are equal in all rows; the caption states them once."""
        if len(self.rows) < 2 or self.facets:
            return self
        facts, out = [], self
        for name, column in zip(self.columns, zip(*self.rows)):
            if name in _SHARED and len({entry.text for entry in column}) == 1 and len(out.columns) > 2:
                facts.append(f"{name} {column[0].text}")
                out = out.without(name)
        for at, column in enumerate(zip(*out.rows)):
            if len({entry.text for entry in column}) == 1 or not all(entry.link and "=" in entry.text for entry in column):
                continue
            axes = [_axes(entry.text) for entry in column]
            equal = [axis for axis in axes[0] if all(axis in of_row for of_row in axes)]
            if equal and all(len(of_row) > len(equal) or "/" in entry.text for of_row, entry in zip(axes, column)):
                facts.append(", ".join(equal))
                for row in out.rows:
                    row[at] = _without_axes(row[at], equal)
        if not facts:
            return out
        return dataclasses.replace(out, caption=" ".join([out.caption, f"In all rows: {'; '.join(facts)}."]).strip())


_SHARED = ("set", "device", "devices", "recipe", "arm", "measured by", "judged")


def _axes(cell: str) -> list[str]:
    """`scenario/device=cpu,recipe=block` -> [device=cpu, recipe=block]"""
    scenario, slash, axes = cell.partition("/")
    return axes.split(",") if slash and "=" not in scenario else cell.split(",")


def _without_axes(entry: Text, equal: list[str]) -> Text:
    scenario = entry.text.partition("/")[0] if "=" not in entry.text.partition("/")[0] else ""
    rest = ",".join(axis for axis in _axes(entry.text) if axis not in equal)
    text = "/".join(part for part in (scenario, rest) if part)
    return dataclasses.replace(entry, text=text, sort=text, markdown=entry.markdown and text)


def number(value: float | None, unit: str, reason: str = "") -> Text:
    if value is None:
        return Text(units.ABSENT, None, reason or "absent", look="absent")
    return Text(units.figure(value, unit), value, units.exact(value, unit), look="number")


def shown(metric: str, figure: Figure) -> Text:
    """A figure as a table entry; yes or no for metrics that are 1 or 0."""
    if figure.value in (0, 1) and metric.rsplit(".")[-1] in (
        "ranks_equal",
        "gathered_equals_unsharded",
        "bitwise_equal",
        "losses_equal",
    ):
        return Text("yes" if figure.value else "no", figure.value, str(int(figure.value)))
    return number(figure.value, figure.unit, figure.reason)


def sides(metric: str, first: Figure, second: Figure) -> tuple[Text, Text]:
    """Two figures side by side, exact ones if they differ and their rounded texts do not."""
    one, other = shown(metric, first), shown(metric, second)
    if one.text == other.text and first.value != second.value:
        return dataclasses.replace(one, text=one.note), dataclasses.replace(other, text=other.note)
    return one, other


def measured_by(cell: Cell) -> str:
    """Whose figures a cell has: `built-in runtime`, `transformer_engine 2.16.0`."""
    subject = str(cell.record["config"].get("subject") or "own")
    version = cell.record["config"].get("versions.after")
    return "built-in runtime" if subject == "own" else f"{subject} {version}" if version else subject


def named(name: str) -> Text:
    """A name as code writes it; a dash if it is empty."""
    return Text(name, look="code") if name else Text(units.ABSENT, look="absent")


def _look(cells: list[Cell]) -> str:
    """Skipped cells and undecided controls are neither good nor bad."""
    decided = [cell for cell in cells if cell.verdict != "skipped" and not cell.is_undecided]
    return "" if not decided else "bad" if any(cell.is_bad for cell in decided) else "good"


def verdict_text(cell: Cell) -> Text:
    return Text(cell.verdict, VERDICTS.index(cell.verdict), look=_look([cell]))


def cell_link(cell: Cell, text: str = "") -> Text:
    return Text(text or cell.point, text or cell.point, cell.id, "#" + cell.anchor, "code")


def scenario_link(cell: Cell) -> Text:
    """The scenario's name, as a link to the cell; Markdown has the cell's id."""
    return dataclasses.replace(cell_link(cell, cell.scenario), markdown=cell.id)


def counts(cells: list[Cell]) -> Text:
    found = {verdict: sum(cell.verdict == verdict for cell in cells) for verdict in VERDICTS}
    text = ", ".join(f"{count} {verdict}" for verdict, count in found.items() if count)
    return Text(text, len(cells), look=_look(cells))


def claimed(cells: list[Cell], metric: str, of: str | None = None) -> Text:
    """What upstream claims of a metric in one of the cells, only of arm `of` if one is named."""
    for cell in cells:
        for claim in cell.record["claims"]:
            if claim["metric"] == metric and of in (None, claim["arm"]):
                arm = claim["arm"]
                return Text(
                    f"{units.figure(claim['value'], claim['unit'])} ({arm})",
                    claim["value"],
                    f"{claim['source']}: {claim['words']}",
                )
    return Text(units.ABSENT, None, "upstream names no figure of this", look="absent")


def claims_table(sets: list[ResultSet]) -> Table:
    rows = []
    for results in sets:
        for cell in results.cells:
            for claim in cell.record["claims"]:
                figure = cell.figure(claim["arm"], claim["metric"])
                unit = figure.unit or claim["unit"]
                in_base = claim["value"] * (units.factor(claim["unit"], unit) or 1.0)
                rows.append(
                    [
                        Text(claim["source"]),
                        Text(claim["words"], look="prose"),
                        Text(f"{claim['metric']}, {claim['arm']}", look="code"),
                        Text(
                            units.figure(claim["value"], claim["unit"]),
                            in_base,
                            units.exact(claim["value"], claim["unit"]),
                            look="number",
                        ),
                        number(claim.get("predicted"), unit, "no closed form"),
                        number(claim.get("measured"), unit, cell.record["reason"] or figure.reason),
                        Text(measured_by(cell)),
                        Text(f"{cell.device}, {cell.record['config'].get('arch', '')}".rstrip(", ")),
                        Text(results.label),
                        scenario_link(cell),
                        Text(claim.get("note", ""), look="prose"),
                    ]
                )
    return Table(
        "claims", ["source", "claim", "figure", "claimed", "predicted", "measured", "measured by", "device", "set", "cell", "note"], rows
    )


def attention_table(sets: list[ResultSet]) -> Table:
    rows = [
        [
            verdict_text(cell),
            cell_link(cell, cell.id),
            Text(results.label),
            Text(cell.record["reason"] or "", look="prose"),
        ]
        for results in sets
        for cell in results.cells
        if cell.is_bad
    ]
    return Table("attention", ["verdict", "cell", "set", "why"], rows)


def _folded(reason: str) -> str:
    return re.sub(r"\b[0-9][0-9.,]*\b", "…", reason)


def _beginning(cell: Cell) -> str:
    """The reason up to its first pause, without versions: `transformer_engine is not installed`."""
    begin = re.split(r"[:;(]|, ", cell.record["reason"] or "")[0].strip()
    begin = _folded(re.sub(r" [0-9]+\.[0-9]+\.[0-9]+\b", "", begin))
    return short(begin) or "no reason is recorded"


def skipped_text(cells: list[Cell]) -> str:
    """How many cells, and the reason that most of them have: `148 skipped (138: transformer_engine is not installed)`."""
    if not cells:
        return "0"
    ((reason, most),) = collections.Counter(map(_beginning, cells)).most_common(1)
    return f"{len(cells):,} skipped ({f'{most:,}: ' if most < len(cells) else ''}{reason})"


def skipped_table(sets: list[ResultSet]) -> Table:
    """A row for each scenario and reason."""
    found: dict[tuple[int, str, str], list[Cell]] = {}
    for results in sets:
        for cell in results.cells:
            if cell.verdict == "skipped":
                found.setdefault((results.index, cell.scenario, _folded(cell.record["reason"] or "")), []).append(cell)
    rows = [
        [
            Text(cells[0].scenario, look="code"),
            Text(cells[0].results.label),
            Text(f"{len(cells):,}", len(cells), look="number"),
            cell_link(cells[0]),
            Text(cells[0].record["reason"] or "", look="prose"),
        ]
        for cells in found.values()
    ]
    return Table("skipped", ["scenario", "set", "cells", "example", "reason of the example"], rows)


def _gate_figure(cell: Cell, gate: dict[str, Any], value: float | None) -> Text:
    """The exact figure: a gate fails by a byte, too."""
    if value is None:
        return Text(units.ABSENT, None, gate.get("detail", "") or "absent", look="absent")
    found = (cell.figure(arm, gate["metric"] or "").unit for arm in (gate["arm"], *ARMS))
    unit = next(filter(None, found), "1")
    if value == int(value):
        return Text(units.exact(value, unit), value, units.figure(value, unit), look="number")
    return Text(f"{value:.6g}" + (f" {unit}" if unit != "1" else ""), value, units.exact(value, unit), look="number")


def gates_table(sets: list[ResultSet]) -> Table:
    """The gates that fail, or are undecided, of the cells that did not come out as expected."""
    rows = [
        [
            cell_link(cell, cell.id),
            Text(results.label),
            Text(gate["text"], look="code"),
            Text("undecided" if gate["pass"] is None else "no", look="bad"),
            _gate_figure(cell, gate, gate["observed"]),
            _gate_figure(cell, gate, gate["limit"]),
            Text(gate.get("detail", ""), look="prose"),
        ]
        for results in sets
        for cell in results.cells
        for gate in cell.record["gates"]
        if cell.is_bad and gate["pass"] is not True
    ]
    columns = ["cell", "set", "gate", "holds", "observed", "limit", "note"]
    return Table("gates", columns, rows, caption="Gates of these cells that fail or are undecided.")


def _varied(results: ResultSet) -> dict[str, list[str]]:
    """By scenario, the axes in which its cells differ, except axes that have a column of their own."""
    values: dict[str, dict[str, set[str]]] = {}
    for cell in results.cells:
        for axis, value in cell.record["axes"].items():
            values.setdefault(cell.scenario, {}).setdefault(axis, set()).add(value)
    return {
        scenario: [axis for axis, found in axes.items() if len(found) > 1 and axis not in ("device", "recipe")]
        for scenario, axes in values.items()
    }


def cells_table(sets: list[ResultSet]) -> Table:
    rows, anchors = [], []
    for results in sets:
        varied = _varied(results)
        for cell in results.cells:
            gates = cell.record["gates"]
            held = sum(gate["pass"] is True for gate in gates)
            peak = [cell.figure(arm, "memory.peak_bytes") for arm in ARMS]
            axes = cell.record["axes"]
            point = ", ".join(f"{axis}={axes[axis]}" for axis in varied.get(cell.scenario, []) if axis in axes)
            rows.append(
                [
                    verdict_text(cell),
                    Text(cell.scenario, note=cell.id, link="#" + cell.anchor, look="code"),
                    named(point),
                    Text(cell.device),
                    Text(cell.recipe),
                    Text(results.label),
                    named(cell.fix),
                    Text(measured_by(cell)),
                    Text(f"{held} of {len(gates)}", held, look="number" if held == len(gates) else "bad"),
                ]
                + [number(figure.value, "B", figure.reason) for figure in peak]
                + [number(float(f"{cell.record['seconds']:.2g}"), "s")]
            )
            anchors.append(cell.anchor)
    return Table(
        "cells",
        [
            "verdict",
            "scenario",
            "axes",
            "device",
            "recipe",
            "set",
            "fix",
            "measured by",
            "gates that hold",
            "peak before",
            "peak after",
            "peak BF16",
            "time",
        ],
        rows,
        anchors,
        search=True,
        facets=["verdict", "device", "recipe", "scenario"],
    )
