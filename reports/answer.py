"""The first statement of a report: did every cell come out as expected, in one line and three figures."""

import dataclasses

from load import Cell, Problem, ResultSet
from records import VERDICTS
from set_tables import differences
from tables import Table, Text, sides, skipped_text

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
    if gone := sorted(fixes - shown - broken):
        unseen = f"no cell shows {', '.join(gone)}; Findings has the reason"
        missing += [] if any(results.unseen_fixes for results in sets) else [unseen]
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
