"""A report as one HTML page, as the page that is printed, and as Markdown."""

import base64
import dataclasses
import functools
import gzip
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jinja2
import markupsafe

import answer as answers
import bench as benches
import documents
import findings
import measure_tables
import plot as plotting
import sections
import tables
import units
from figures import Plot
from load import Problem, ResultSet
from records import ARMS
from tables import Table, Text

MARK = "made by fp8lab report"  # in the first lines of report.html and report.md; files without it are not replaced
TEMPLATES = pathlib.Path(__file__).parent / "templates"
MOST_NOTES = 12  # notes of a cell
MOST_WRITTEN_ROWS = 80  # rows of a table in the page itself; others are drawn when they are seen
MOST_PRINTED_ROWS = 40  # rows of a table in the PDF


@dataclasses.dataclass
class Section:
    """A row of sections.SECTIONS with the data of one report."""

    name: str
    title: str
    text: str
    tables: list[Table]
    plots: list[Plot]
    absent: str  # why the section is empty
    markdown: str
    is_printed: bool

    @property
    def is_empty(self) -> bool:
        return not self.plots and not any(table.rows for table in self.tables)


@dataclasses.dataclass
class Report:
    title: str
    line: str
    answer: answers.Answer
    leads: list[findings.Lead]
    sets: list[ResultSet]
    problems: list[Problem]
    sections: list[Section]

    @property
    def filled(self) -> list[Section]:
        return [section for section in self.sections if not section.is_empty]

    @property
    def gaps(self) -> list[Section]:
        return [section for section in self.sections if section.is_empty]

    @property
    def plots(self) -> list[Plot]:
        return [plot for section in self.sections for plot in section.plots]


def make(title: str, sets: list[ResultSet], bench: benches.Bench, plots: list[Plot], problems: list[Problem]) -> Report:
    data = sections.Data(sets, bench, problems)
    made = [_section(row, data, plots) for row in sections.SECTIONS if row.name != "problems" or problems]
    return Report(
        title, _line(sets), answers.answer(sets, problems), findings.leading(sets, plots), sets, problems, made
    )


def _section(row: sections.Row, data: sections.Data, plots: list[Plot]) -> Section:
    def text(of: str | Callable[[sections.Data], str]) -> str:
        return of if isinstance(of, str) else of(data)

    made = [make(data) for make in row.tables]
    if len(data.sets) == 1 and row.name != "sets":
        made = [table.without("set") for table in made]
    made = [table.shortened() for table in made]
    section = Section(
        row.name, row.title, text(row.text), made, [plot for plot in plots if plot.section == row.name], "", row.markdown,
        row.is_printed,
    )
    if section.is_empty:  # some reasons search all cells, so only if they are shown
        section.absent = text(row.absent)
    return section


def _line(sets: list[ResultSet]) -> str:
    cells = [cell for results in sets for cell in results.cells]
    bad = sum(cell.is_bad for cell in cells)
    beside = {  # neither as expected nor a failure
        "skipped": sum(cell.verdict == "skipped" for cell in cells),
        "undecided": sum(cell.is_undecided for cell in cells),
    }
    good = len(cells) - bad - sum(beside.values())
    of_sets = f"{len(sets)} result set{'s' * (len(sets) != 1)}"
    line = f"{len(cells):,} cell{'s' * (len(cells) != 1)} of {of_sets}; {good:,} as expected, {bad:,} not"
    return line + "".join(f", {count:,} {what}" for what, count in beside.items() if count) + "."


def details(sets: list[ResultSet]) -> dict[str, Any]:
    """All figures of all cells. Metrics, reasons and notes are numbered, because they repeat often."""
    metrics: dict[tuple[str, str], int] = {}
    reasons: dict[str, int] = {}
    out: dict[str, Any] = {}
    for results in sets:
        for cell in results.cells:
            arms: dict[str, Any] = {}
            notes: dict[str, list[str]] = {}
            for name in ARMS:
                arm = cell.arm(name)
                if arm is None:
                    continue
                for note in arm.get("notes") or []:
                    notes.setdefault(note, []).append(name)
                rows = [
                    [
                        metrics.setdefault((metric, entry["unit"]), len(metrics)),
                        entry["value"],
                        entry["predicted"],
                        *([reasons.setdefault(entry["reason"], len(reasons))] if entry.get("reason") else []),
                    ]
                    for metric, entry in arm["metrics"].items()
                    if not metric.startswith("memory.predicted_")
                ]
                arms[name] = {
                    "status": cell.ending(name) or "ok",
                    "rows": rows,
                    "reason": arm.get("reason") or "",
                    "retained": _holders(arm.get("retained_by_holder") or []),
                    "losses": _thinned(arm.get("losses") or []),
                }
            gates = [
                [gate["text"], gate["pass"], gate["observed"], gate["limit"], gate.get("detail", "")]
                for gate in cell.record["gates"]
            ]
            out[cell.anchor] = {"title": cell.record["title"], "arms": arms, "gates": gates}
            if notes:
                shown = list(notes.items())[:MOST_NOTES]
                out[cell.anchor]["notes"] = [[reasons.setdefault(note, len(reasons)), ", ".join(of)] for note, of in shown]
                out[cell.anchor]["more_notes"] = len(notes) - len(shown)
    return {"metrics": list(metrics), "reasons": list(reasons), "cells": out}


def _holders(entries: list[dict[str, Any]]) -> list[tuple[str, float]]:
    holders, others, rest = measure_tables.largest_holders(entries)
    return [*holders, (f"and {others:,} more", rest)] if others else holders


def _thinned(losses: list[float | None], most: int = 64) -> list[float | None]:
    """At most `most` losses, at even distances, the first and the last among them."""
    if len(losses) <= most:
        return losses
    return [losses[i * (len(losses) - 1) // (most - 1)] for i in range(most)]


def _entry(entry: Text) -> list[Any]:
    """A table's entry, without empty parts at its end."""
    out = [entry.text, entry.look, entry.link, entry.note if entry.note != entry.text else "", entry.sort]
    if entry.sort in (None, entry.text):
        out.pop()
    while len(out) > 1 and out[-1] == "":
        out.pop()
    return out


def _is_written(table: Table) -> bool:
    return table.written or len(table.rows) <= MOST_WRITTEN_ROWS


def bulk(report: Report, svgs: dict[str, str]) -> str:
    """What the page draws when it is needed, figures, long tables and the figures of cells: JSON, as gzip in base64."""
    long = [table for section in report.sections for table in section.tables if not _is_written(table)]
    document = {
        "figures": svgs,
        "tables": {
            table.name: {"rows": [[_entry(entry) for entry in row] for row in table.rows], "anchors": table.anchors}
            for table in long
        },
        "details": details(report.sets),
    }
    text = json.dumps(document, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _proportions(svg: str) -> str:
    """A figure's width by height, for the room that it takes before it is drawn."""
    box = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg)
    return f"{box[1]} / {box[2]}" if box else "auto"


# The places at which a line may break: inside a name after `_`, `/`, `=`, and after `.` and `,` before a letter.
_BREAKS = re.compile(r"(?<=[_/=])(?=\w)|(?<=[.,])(?=[A-Za-z])")


def _breakable(text: str) -> markupsafe.Markup:
    return markupsafe.Markup("<wbr>").join(_BREAKS.split(text))


@functools.cache  # an environment caches its compiled templates
def _environment(autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=autoescape,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = _markdown
    environment.filters["breakable"] = _breakable
    return environment


def html(report: Report, svgs: dict[str, str]) -> str:
    return _render(
        report,
        report.filled,
        lambda table: table.rows if _is_written(table) else [],
        proportions={name: _proportions(svg) for name, svg in svgs.items()},
        bulk=bulk(report, svgs),
        script=(TEMPLATES / "report.js").read_text(encoding="utf-8"),
    )


def printed(report: Report) -> str:
    """The page for the PDF: without script, and with the beginning of long tables."""
    shown = [dataclasses.replace(section, plots=[]) for section in report.filled if section.is_printed]
    return _render(report, shown, lambda table: table.rows[:MOST_PRINTED_ROWS], bulk="", script="")


def _render(report: Report, shown: list[Section], rows_of: Callable[[Table], list[list[Text]]], **rest: Any) -> str:
    return _environment(True).get_template("report.html").render(
        report=report,
        mark=MARK,
        sections=shown,
        elsewhere=[section.title for section in report.filled if not section.is_printed],
        rows_of=rows_of,
        leads=[(lead, [markupsafe.Markup(plotting.in_theme(svg)) for svg in lead.pictures]) for lead in report.leads],
        style=(TEMPLATES / "style.css").read_text(encoding="utf-8"),
        **rest,
    )


def markdown(report: Report) -> str:
    return _environment(False).get_template("report.md").render(report=report, mark=MARK, absent=units.ABSENT)


def _markdown(text: Text | str) -> str:
    if isinstance(text, Text):
        words = text.markdown or text.text
        return documents.markdown_code(words) if text.look == "code" and words else documents.markdown(words)
    return documents.markdown(text)
