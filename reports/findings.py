"""What a run found, as its results say: the largest findings with a small picture of before and after, then all of them by
size of effect, and those that no cell shows with the reason."""

import dataclasses

import panels
import units
from answer import cause
from documents import short
from figures import Plot, by_scenario, timeline_name
from load import Cell, Finding, ResultSet
from tables import Table, Text, cell_link, claimed, counts, measured_by, named, number, shown

MOST_LEADING = 5


@dataclasses.dataclass
class Lead:
    """A finding at the top of the page: a sentence, whose figures they are, and a picture of both arms."""

    name: str
    text: str
    source: str
    link: str
    pictures: list[str]  # SVG


def _sentence(finding: Finding) -> str:
    if not finding.shown:
        return finding.text.removeprefix(f"{finding.fix}: ")
    count = f"{finding.cells} of {finding.of} cells"
    text = finding.text.removeprefix(f"{finding.fix}: ").replace("->", "→")
    return text if count in text else f"{text} ({count})"


def _cell_of(results: ResultSet, finding: Finding) -> Cell | None:
    """The cell of the finding, or one of its scenario if the finding is about all of them."""
    of_scenario = (cell for cell in results.cells if cell.scenario in finding.scenarios[:1])
    return results.by_id.get(finding.cell) or next(of_scenario, None)


def _source(results: ResultSet, finding: Finding, cell: Cell | None) -> str:
    if cell is None:
        return results.label
    reason = (cell.arm("before") or {}).get("reason") if finding.kind == "ending" else None
    why = f"; before: {short(reason)}" if reason else ""
    return f"{measured_by(cell)} on {cell.device}, {cell.recipe}; {cell.scenario}{why}"


def _pictures(finding: Finding, cell: Cell | None, plots: dict[str, Plot]) -> list[str]:
    """The timelines of a finding about memory if they were read, else a bar for each arm if both have a figure."""
    plot = plots.get(timeline_name(cell)) if cell and finding.metric.startswith("memory.") else None
    if plot and {"before", "after"} <= set(plot.data.arms):
        return [panels.panel(plot.data, plot.data.arms.index(arm), small=True) for arm in ("before", "after")]
    if finding.kind == "ending" and cell:
        return [panels.bars([("before", 0, cell.ending("before") or "works"), ("after", 1, cell.ending("after") or "works")])]
    if finding.before is None or finding.after is None:
        return []
    sides = (("before", finding.before), ("after", finding.after))
    return [panels.bars([(arm, value, units.figure(value, finding.unit or "1")) for arm, value in sides])]


def leading(sets: list[ResultSet], plots: list[Plot]) -> list[Lead]:
    """The largest findings of all sets; a finding that several sets share is shown once."""
    by_name = {plot.name: plot for plot in plots}
    ranked = sorted(
        ((rank, results, one) for results in sets for rank, one in enumerate([one for one in results.findings or [] if one.shown and one.kind != "held"])),
        key=lambda entry: entry[0],
    )
    chosen = {(finding.fix, finding.text, *finding.scenarios): (results, finding) for _, results, finding in reversed(ranked)}
    out = []
    for results, finding in [*reversed(chosen.values())][:MOST_LEADING]:
        cell = _cell_of(results, finding)
        name = finding.fix or ", ".join(finding.scenarios)
        link = "#" + cell.anchor if cell else "#findings"
        out.append(Lead(name, _sentence(finding), _source(results, finding, cell), link, _pictures(finding, cell, by_name)))
    return out


def findings_table(sets: list[ResultSet]) -> Table:
    rows = []
    for results in sets:
        for finding in results.findings or []:
            if not finding.shown:
                continue
            cell = _cell_of(results, finding)
            unit = finding.unit or "1"
            rows.append(
                [
                    named(finding.fix),
                    Text(_sentence(finding), look="prose"),
                    number(finding.before, unit, "not a figure"),
                    number(finding.after, unit, "not a figure"),
                    number(finding.predicted, unit, "no closed form"),
                    claimed([cell] if cell else [], finding.metric),
                    Text(measured_by(cell)) if cell else named(""),
                    cell_link(cell, cell.id) if cell else named(finding.cell),
                    Text(results.label),
                ]
            )
    columns = ["fix", "found", "before", "after", "predicted before", "claimed upstream", "measured by", "shown by", "set"]
    return Table("findings", columns, rows, written=True, caption="Largest effect first.")


def hidden_table(sets: list[ResultSet]) -> Table:
    """What is not shown: fixes without a cell that shows them, failed and undecided cells."""
    rows = [
        [named(one.fix), Text(", ".join(one.scenarios), look="code"), Text(_sentence(one).removesuffix(f": {one.reason}"), look="prose"), Text(one.reason, look="prose"), Text(results.label)]
        for results in sets
        for one in results.findings or []
        if not one.shown
    ]
    return Table("hidden", ["fix", "scenarios", "what", "why", "set"], rows, written=True, caption="Not shown, and why:")


def without_findings(sets: list[ResultSet]) -> str:
    """Which sets hold no findings, and the program that wrote them."""
    older = [f"{results.label} (written by {results.program})" for results in sets if results.findings is None and results.cells]
    if not older:
        return ""
    return f"No findings are recorded in {', '.join(older)}: the verdicts of each scenario are listed; run again to have findings."


MOST_FIGURES = 4
_FIGURES = ("memory.peak_bytes", "memory.retained_bytes", "traffic.all_gather_bytes", "parity.loss_gap", "time.step_ms")


def _figures(cell: Cell) -> str:
    """Figures of the after arm: those that gates are about, then others that most cells have."""
    gates = [gate["metric"] for gate in cell.record["gates"] if gate["arm"] == "after" and gate["metric"]]
    out = []
    for metric in dict.fromkeys([*gates, *_FIGURES]):
        figure = cell.figure("after", metric)
        if figure.value is not None and metric not in ("memory.unexplained_bytes", "memory.unbalanced_bytes"):
            out.append(f"{metric.partition('.')[2].replace('_', ' ')} {shown(metric, figure).text}")
    return "; ".join(out[:MOST_FIGURES])


def scenarios_table(sets: list[ResultSet]) -> Table:
    """A row for every scenario, what needs attention first."""
    rows = []
    for results in sets:
        for cells in sorted(by_scenario(results.cells).values(), key=lambda cells: not any(cell.is_bad for cell in cells)):
            cell = min(cells, key=lambda cell: (not cell.is_bad, cell.verdict == "skipped", cell.is_control))
            fixes = ", ".join(sorted({one.fix for one in cells if one.fix}))
            devices = ", ".join(sorted({one.device for one in cells}))
            link = dataclasses.replace(cell_link(cell, cell.scenario), markdown=cell.id)
            claim = Text(cell.record["title"], look="prose")
            figures = cause(cell) if cell.is_bad or cell.verdict == "skipped" else _figures(cell)
            found = Text(figures, note="after the fix" if cell.fix else "", look="bad" if cell.is_bad else "prose")
            rows.append([counts(cells), link, claim, named(fixes), found, Text(devices), Text(results.label)])
    columns = ["verdicts", "scenario", "claim", "fix", "figures of the cell", "devices", "set"]
    return Table("scenarios", columns, rows, written=True, caption="Every scenario, what needs attention first.")
