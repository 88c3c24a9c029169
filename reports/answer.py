"""What a report says first: did every cell come out as expected, in one line and three figures; and what each scenario
found, in a sentence."""

import dataclasses
import re
from collections.abc import Iterable

import units
from figures import NEVER_HEADLINES, by_scenario, headlines
from load import Cell, Problem, ResultSet
from records import VERDICTS
from set_tables import differences
from tables import Table, Text, bits_differ, cell_link, counts, named, scenario_link, shown, sides, skipped_text

# Verdicts that gates decided.
JUDGED = frozenset(VERDICTS) - {"inconclusive", "skipped", "crashed", "timeout"}


@dataclasses.dataclass
class Answer:
    look: str  # good, bad, or incomplete: what ran is good, and something is missing
    line: str
    figures: list[tuple[str, str]]  # what, and how many


def _plural(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def answer(sets: list[ResultSet], problems: list[Problem]) -> Answer:
    cells = [cell for results in sets for cell in results.cells]
    skipped = [cell for cell in cells if cell.verdict == "skipped"]
    undecided = sum(cell.is_undecided for cell in cells)
    ran = [cell for cell in cells if cell.verdict != "skipped" and not cell.is_undecided]
    bad = [cell for cell in ran if cell.is_bad]
    cut = [results.label for results in sets if results.complete is False]
    fixes = {cell.fix for cell in ran if cell.fix}
    shown = {cell.fix for cell in ran if cell.verdict == "confirmed"}
    broken = {cell.fix for cell in bad}
    gates = [gate["pass"] for cell in ran for gate in cell.record["gates"]]
    figures = [
        ("cells as expected", f"{len(ran) - len(bad):,} of {len(ran):,}"),
        (
            ("defects found before their fix, and gone after", f"{len(shown - broken)} of {len(fixes)}")
            if fixes
            else ("gates that hold", f"{gates.count(True):,} of {len(gates):,}")
        ),
        ("cells that did not run", skipped_text(skipped)),
    ]
    missing = [text for results in sets for text in results.unseen_fixes]
    if cut:
        missing.append(f"{', '.join(cut)} stopped or was cut off")
    if problems:
        missing.append(f"{_plural(len(problems), 'thing')} could not be read")
    if not ran:
        return Answer("incomplete", "; ".join(["No cell ran", *missing]) + ".", figures)
    if bad:
        worst = min(bad, key=_urgency)
        line = f"{_plural(len(bad), 'cell')} not as expected, first {worst.scenario} ({worst.verdict}): {cause(worst)}"
        return Answer("bad", "; ".join([line, *missing]) + ".", figures)
    line = f"All {_plural(len(ran), 'cell')} that ran came out as their scenarios expect"
    if not gates and all(cell.verdict == "pass" for cell in ran):
        line = f"All {_plural(len(ran), 'cell')} ran to their end; their scenarios expect nothing of them"
    line += f"; {_plural(undecided, 'control')} undecided" if undecided else ""
    return Answer("incomplete" if missing else "good", "; ".join([line, *missing, *_change(sets)]) + ".", figures)


def cause(cell: Cell) -> str:
    """Why a cell is not as expected; of bytes that should be gone, who holds them."""
    reason = cell.record["reason"] or cell.verdict.replace("_", " ")
    broken = next((gate for gate in cell.record["gates"] if gate["pass"] is False), None)
    held = (cell.arm("after") or {}).get("retained_by_holder") or []
    if broken and broken["metric"] == "memory.retained_bytes" and held:
        reason += f", held by {held[0]['holder']}" + (f" and {len(held) - 1} more" if len(held) > 1 else "")
    return reason


# Two runs of equal code take different times; a time without a gate is named beyond this change.
_LARGE = 1.5


def _change(sets: list[ResultSet]) -> list[str]:
    """What differs most between the first set and the last: bytes, counts and fractions, or else a time."""
    if len(sets) < 2:
        return []
    first, last = sets[0], sets[-1]
    found = []
    for one in differences([first, last])[0]:
        for (index, device), (cell, now) in one.found.items():
            was = one.found.get((first.index, device))
            if index != last.index or was is None or was[1].value == now.value or one.arm == "bf16":
                continue
            is_time = now.unit in ("ms", "ns")
            if is_time and one.spread < 1 - 1 / _LARGE:
                continue
            old, new = (text.text for text in sides(one.metric, was[1], now))
            ratio = f", {now.value / was[1].value:.2f} times" if was[1].value and now.value else ""
            text = f"{cell.scenario}, {one.arm}: {one.metric} is {new} and was {old}{ratio}"
            found.append((not cell.is_bad, is_time, -one.spread, text))
    if not found:
        return []
    more = f" (and {len(found) - 1:,} more under Side by side)" if len(found) > 1 else ""
    return [f"{last.label} against {first.label}: {min(found)[3]}{more}"]


# Verdicts that say most about the code under test come first.
_URGENT = ("regressed", "not_fixed", "fail", "crashed", "timeout", "not_reproduced", "inconclusive")


def _urgency(cell: Cell) -> tuple[int, int]:
    verdict = _URGENT.index(cell.verdict) if cell.verdict in _URGENT else len(_URGENT)
    return (0 if cell.is_bad else 2 if cell.verdict == "skipped" else 1, verdict)


# --- one sentence for each scenario --------------------------------------------------------------------------------------

_SHOWN = ("memory.peak_bytes", "memory.retained_bytes", "traffic.all_gather_bytes", "parity.loss_gap", "time.step_ms")


def _measure_of(metric: str) -> str:
    name = metric.partition(".")[2].removeprefix("by_holder.")
    return re.sub("_(bytes|ms|ns|db)$", "", name).replace("_", " ").replace("sqnr", "SQNR")


def _difference(cell: Cell, metric: str) -> str:
    before, after = cell.figure("before", metric), cell.figure("after", metric)
    texts = sides(metric, before, after)
    text = f"{_measure_of(metric)}: {texts[0].text} before, {texts[1].text} after"
    if before.predicted is not None and before.predicted == before.value and after.predicted == after.value:
        text += ", both as predicted"
    return text


def _ratios(cell: Cell) -> list[str]:
    """Gates on time: the ratio between arms, with its interval."""
    out = []
    for gate in cell.record["gates"]:
        ratio = gate.get("ratio")
        if ratio:
            held = {True: "held", False: "broken", None: "undecided"}[gate["pass"]]
            out.append(
                f"{_measure_of(gate['metric'] or 'time')}: {ratio['value']:.3f} times "
                f"({ratio['low']:.3f} to {ratio['high']:.3f} over {ratio['pairs']} pairs), gate {held}"
            )
    return out


def _is_mended(cell: Cell) -> bool:
    return bool(cell.ending("before")) and not cell.ending("after")


def _ends(cell: Cell) -> str:
    return f"{cell.ending('before')} before, works after"


_EXPECTED = 3  # figures with a gate of a cell's finding
_FIGURES = 4


def _values(cell: Cell) -> list[str]:
    """The figures that the cell's gates on `after` are about, those with a bound first; then others that most cells
    have."""
    against_itself = ("parity.loss_gap",) if cell.recipe == "bf16" else ()
    expected: dict[str, str] = {}
    for gate in sorted(cell.record["gates"], key=lambda gate: " equals " in gate["text"]):
        metric = gate["metric"]
        if gate["arm"] == "after" and metric and gate["pass"] and metric not in (*NEVER_HEADLINES, *against_itself):
            words = gate["text"].removeprefix(f"after {metric} is ")
            words = "as predicted" if "equals predicted" in words else "as expected" if " equals " in words else words
            expected.setdefault(metric, f" ({words})")
    out = []
    for metric in [*list(expected)[:_EXPECTED], *(metric for metric in _SHOWN if metric not in expected)]:
        figure = cell.figure("after", metric)
        if figure.value is not None and metric not in against_itself:
            out.append(f"{_measure_of(metric)} {shown(metric, figure).text}{expected.get(metric, '')}")
    return out[:_FIGURES]


def shows_most(cells: list[Cell]) -> Cell:
    """The cell that a scenario's row links to: the one that needs attention most, else the one with the finding, else
    a cell with quantized weights where others have none, of these one as the defaults shard it, with the largest peak."""
    bad = [cell for cell in cells if cell.is_bad]
    if bad:
        return min(bad, key=_urgency)
    found = headlines(cells)
    if found:
        return found[0].cell
    return max([*filter(_is_mended, cells)] or [*filter(bits_differ, cells)] or cells, key=_subject)


def _subject(cell: Cell) -> tuple[bool, bool, bool, bool, bool, float]:
    """Ranks cells of a scenario without a difference by how much they show of FP8, which most titles are about."""
    config = cell.record["config"]
    return (
        cell.verdict != "skipped",
        not cell.is_control,
        config.get("training.quantized_weights") is True and cell.recipe != "bf16",
        cell.recipe != "bf16",
        config.get("reshard_after_forward") is not False,
        cell.figure("after", "memory.peak_bytes").value or 0.0,
    )


def finding(cells: list[Cell]) -> list[Text]:
    """What the cell of shows_most() found, and what only other cells show, each with its cell."""
    cell = shows_most(cells)
    if cell.is_bad or cell.verdict == "skipped":
        return [Text(cause(cell))]
    of_all = headlines(cells)
    own = [*dict.fromkeys(one.metric for one in [*(one for one in of_all if one.cell is cell), *headlines([cell])])]
    parts = _ratios(cell) + ([_ends(cell)] if _is_mended(cell) else []) + [_difference(cell, metric) for metric in own[:2]]
    if not parts and bits_differ(cell):
        parts = ["before's bits differ from after's"]
    others = [(one.cell, _difference(one.cell, one.metric)) for one in of_all if one.metric not in own]
    if not _is_mended(cell):
        others += [(one, _ends(one)) for one in [*filter(_is_mended, cells)][:1]]
    out = [Text("; ".join(parts or _values(cell)) or "every gate holds")]
    for other, text in others:
        out += [Text(f"; {text} (in "), cell_link(other), Text(")")]
    return out


def scenarios_of(results: ResultSet) -> Iterable[list[Cell]]:
    """Cells by scenario, those that need attention first."""
    return sorted(by_scenario(results.cells).values(), key=lambda cells: _urgency(shows_most(cells)))


def findings_table(sets: list[ResultSet]) -> Table:
    """A row for every scenario, whoever wrote it."""
    rows = []
    for results in sets:
        for cells in scenarios_of(results):
            cell = shows_most(cells)
            fixes = ", ".join(sorted({one.fix for one in cells if one.fix}))
            parts = finding(cells)
            found = Text("".join(part.text for part in parts), look="bad" if cell.is_bad else "prose", parts=parts)
            rows.append(
                [
                    counts(cells),
                    Text(cell.record["title"], look="prose"),
                    found,
                    scenario_link(cell),
                    named(fixes),
                    Text(", ".join(sorted({one.device for one in cells}))),
                    Text(results.label),
                ]
            )
    return Table("findings", ["verdicts", "claim", "found", "shown by", "fix", "devices", "set"], rows, written=True)


def controls_table(sets: list[ResultSet]) -> Table:
    """Cells whose arms are equal, or differ by a planted amount: how often the measurement itself was wrong."""
    rows = []
    for results in sets:
        for kind, what, wrong in (
            ("same", "equal arms", "false alarms"),
            ("planted", "a planted byte, collective and 5 % of time", "missed"),
        ):
            cells = [cell for cell in results.cells if cell.record["config"].get("control") == kind]
            ran = [cell for cell in cells if cell.verdict in JUDGED]
            undecided = sum(cell.verdict == "inconclusive" for cell in cells)
            if ran or undecided:
                failed = sum(cell.is_bad for cell in ran)
                rows.append(
                    [
                        Text(results.label),
                        Text(what),
                        Text(f"{len(ran):,}", len(ran), look="number"),
                        Text(f"{failed} {wrong} of {len(ran)}", failed, look="bad" if failed else "good"),
                        Text(f"{undecided:,}", undecided, look="number"),
                    ]
                )
    return Table("controls", ["set", "control", "decided", "outcome", "undecided"], rows)
