"""The sections of a report, in their order: a row for each."""

import dataclasses
from collections.abc import Callable
from typing import Any

import ablations
import answer as answers
import bench as benches
import findings
import library_tables
import measure_tables
import parity_words
import set_tables
import tables
from figures import why_no_holders, why_no_noise, why_no_retained, why_no_timelines
from load import Problem, ResultSet
from tables import Table

MOST_NOISE_ROWS = 400


@dataclasses.dataclass
class Data:
    """What all sections are made of."""

    sets: list[ResultSet]
    bench: benches.Bench
    problems: list[Problem]


@dataclasses.dataclass(frozen=True)
class Row:
    """A section of every report: its statement, its tables, and why it may be empty."""

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
        "on which machine. Predicted figures come from closed formulas that share no code with the runtime.",
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
        "one at a time, after all others. Times differ from run to run, so they are not judged, unless a gate names them.",
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
        "From the benchmarks' own counters, and from rows of one name in a peer's file: of their medians if both have "
        "one. The peer belongs to the same set, or to another set, which is then named.",
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
        "Libraries and the built-in runtime",
        "The same model and training in a library and in this program's own runtime: what is predicted of each, what was "
        "measured, and what upstream claims; the widest difference first. Then what either holds when forward ends, by "
        "holder: agreement is 1 % of the library's bytes alive, and a note names what it keeps beyond.",
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
