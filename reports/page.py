"""The sections of a report, as one HTML page and as Markdown."""

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

import ablations
import answer as answers
import bench as benches
import escape
import findings
import library_tables
import measure_tables
import parity_words
import set_tables
import plot as plotting
import tables
import units
from figures import Plot, why_no_holders, why_no_noise, why_no_retained, why_no_timelines
from load import Problem, ResultSet
from records import ARMS
from tables import Table, Text

MARK = "made by fp8lab report"  # in the first lines of report.html and report.md; files without it are not replaced
TEMPLATES = pathlib.Path(__file__).parent / "templates"
MOST_NOISE_ROWS = 400
MOST_NOTES = 12  # of a cell
MOST_WRITTEN_ROWS = 80  # of a table in the page itself; others are drawn when they are seen
MOST_PRINTED_ROWS = 40  # of a table in the PDF


@dataclasses.dataclass
class Data:
    """What all sections are made of."""

    sets: list[ResultSet]
    bench: benches.Bench
    problems: list[Problem]


@dataclasses.dataclass(frozen=True)
class Row:
    """A section of every report: what it says, its tables, and why it may be empty."""

    name: str
    title: str
    text: str | Callable[[Data], str] = ""
    tables: tuple[Callable[[Data], Table], ...] = ()
    absent: str | Callable[[Data], str] = ""
    markdown: str = ""  # the text in Markdown, if it is another one
    is_printed: bool = False  # the others are on the page only


def _of_sets(make: Callable[[list[ResultSet]], Any]) -> Callable[[Data], Any]:
    return lambda data: make(data.sets)


SECTIONS = (
    Row(
        "problems",
        "What could not be read",
        "These parts are missing below.",
        (lambda data: set_tables.problems_table(data.problems),),
        is_printed=True,
    ),
    Row(
        "attention",
        "Needs attention",
        "Cells that did not come out as their scenarios expect.",
        (_of_sets(tables.attention_table), _of_sets(tables.gates_table)),
        "Every cell came out as its scenario expects.",
        is_printed=True,
    ),
    Row(
        "findings",
        "Findings",
        _of_sets(findings.without_findings),
        (_of_sets(findings.findings_table), _of_sets(findings.hidden_table), _of_sets(findings.scenarios_table)),
        "no cell could be read",
        is_printed=True,
    ),
    Row(
        "skipped",
        "Did not run",
        "A row for every scenario and reason to skip its cells; reasons that differ only by numbers are one.",
        (_of_sets(tables.skipped_table),),
        "no cell was skipped",
        is_printed=True,
    ),
    Row(
        "claims",
        "Claims of the source documents",
        "A line for every figure that a document names: what it claims, what the formulas predict, what was measured and "
        "where. Predicted figures come from closed formulas that share no code with the runtime.",
        (_of_sets(tables.claims_table),),
        "no scenario of these results carries a claim",
        is_printed=True,
    ),
    Row(
        "timelines",
        "Memory timelines",
        "Cells with a failed gate on memory; for each fix the cell of its finding about memory; for other scenarios the cell "
        "with the largest peak. Both arms have the same axes.",
        absent=_of_sets(why_no_timelines),
    ),
    Row("holders", "Holders at the peak", absent=_of_sets(why_no_holders)),
    Row(
        "retained",
        "Holders after backward",
        "Who still holds bytes that should be gone when backward ends. Shown are cells with a failed gate on "
        "memory.retained_bytes, and of each scenario the cell that retains most, before its fix if it has one.",
        (_of_sets(measure_tables.retained_table),),
        _of_sets(why_no_retained),
    ),
    Row(
        "wire",
        "Bytes on the wire",
        "Bytes of the full arrays that the collectives of one rank gather, reduce-scatter or all-reduce in a step, by "
        "recipe. In a ring of N ranks each sends (N-1)/N of what it gathers or reduce-scatters.",
        (_of_sets(measure_tables.wire_table),),
        "no cell measured the bytes of an all-gather",
    ),
    Row(
        "times",
        "Step time",
        "Is it faster? Wall time of a training step and of its phases: the median over the steps without the first, on one "
        "rank, with the device synchronised after each phase; on `meta` only the host's work. Cells that measure time run "
        "alone, after all others. Times differ from run to run, so they are not judged, unless a gate names them.",
        (_of_sets(measure_tables.times_table),),
        "no cell measured time",
    ),
    Row(
        "host",
        "Time before forward",
        "What the host does before a sharded layer's first kernel.",
        (_of_sets(measure_tables.host_table),),
        "no cell measured the time before forward",
    ),
    Row(
        "losses",
        "Losses",
        "Each recipe against BF16, on the same data.",
        (_of_sets(parity_words.words_table), _of_sets(measure_tables.parity_table)),
        "no cell measured parity",
    ),
    Row(
        "ablations",
        "What one key changes",
        "",
        (_of_sets(ablations.ablations_table),),
        "no scenario has cells, of no fix, that set one axis of its matrix more than another cell, as `include` makes them",
    ),
    Row(
        "noise",
        "Noise by tensor",
        "",
        (lambda data: measure_tables.noise_table(data.sets, MOST_NOISE_ROWS),),
        _of_sets(why_no_noise),
    ),
    Row(
        "ratios",
        "Ratios to bounds and peers",
        "From the benchmarks' own counters, and from rows of one name in a peer's file: of their medians where both have "
        "one. The peer is that of the same set, or of another one, which is then named.",
        (lambda data: measure_tables.ratios_table(data.bench), lambda data: measure_tables.benches_table(data.bench)),
        "no benchmark file was given, nor found under bench/ of a result set",
    ),
    Row(
        "compare",
        "Side by side",
        "Cells of one name and equal keys in several sets, or on several devices: the figures that differ, widest first.",
        (lambda data: set_tables.compare_table(data.sets)[0], _of_sets(set_tables.redefined_table)),
        lambda data: set_tables.compare_table(data.sets)[1],
    ),
    Row(
        "libraries",
        "Libraries beside the own runtime",
        "The same model and training in a library and in this program's own runtime: what is predicted of each, what was "
        "measured, and what upstream claims; the widest difference first. Then what either holds when forward ends, by "
        "holder: agreement is 1 % of the library's bytes alive, and a note says what it keeps beyond.",
        (_of_sets(library_tables.libraries_table), _of_sets(library_tables.holders_table)),
        "no cell of a library has a cell of the own runtime with the same keys",
    ),
    Row(
        "controls",
        "Controls of the measurement",
        "Cells with equal arms, which must not fail, and with planted differences, which must be found "
        "(`fp8lab run --controls`).",
        (_of_sets(answers.controls_table),),
        "no control was run; `fp8lab run --controls` adds them",
        is_printed=True,
    ),
    Row(
        "sets",
        "Result sets",
        "What this report is made of.",
        (_of_sets(set_tables.sets_table),),
        "no result set could be read",
        is_printed=True,
    ),
    Row(
        "environment",
        "Environment",
        "What each run recorded of its machine and program.",
        (lambda data: set_tables.environment_table(data.sets, data.bench),),
        "no environment was recorded",
    ),
    Row(
        "cells",
        "All cells",
        "Choose a cell to see its gates, notes and figures; its address can be sent to others.",
        (_of_sets(tables.cells_table),),
        "no cell could be read",
        "A row for every cell; report.html has the gates, notes and all figures of each.",
    ),
)


@dataclasses.dataclass
class Section:
    """A row of SECTIONS with the data of one report."""

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
    data = Data(sets, bench, problems)
    sections = [_section(row, data, plots) for row in SECTIONS if row.name != "problems" or problems]
    return Report(
        title, _line(sets), answers.answer(sets, problems), findings.leading(sets, plots), sets, problems, sections
    )


def _section(row: Row, data: Data, plots: list[Plot]) -> Section:
    def text(of: str | Callable[[Data], str]) -> str:
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


# Where a line may break: inside a name after `_`, `/`, `=`, and after `.` and `,` before a letter.
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
    sections = [dataclasses.replace(section, plots=[]) for section in report.filled if section.is_printed]
    return _render(report, sections, lambda table: table.rows[:MOST_PRINTED_ROWS], bulk="", script="")


def _render(report: Report, sections: list[Section], rows_of: Callable[[Table], list[list[Text]]], **rest: Any) -> str:
    return _environment(True).get_template("report.html").render(
        report=report,
        mark=MARK,
        sections=sections,
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
        return escape.markdown_code(words) if text.look == "code" and words else escape.markdown(words)
    return escape.markdown(text)
