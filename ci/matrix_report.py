"""What ci/matrix tells CI systems: a Markdown summary, annotations, and a JUnit suite for the comparison."""

import collections
import dataclasses
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "reports"))
import escape  # noqa: E402
from documents import (COUNT, FLAG, FLAG_OR_NULL, NUMBER, NUMBER_OR_NULL, TEXT, TEXT_OR_NULL, Malformed,  # noqa: E402
                       misfit, one_line, parsed)

# What is read of the documents that the program wrote.
RESULTS = {"complete": FLAG,
           "cells": [{"id": TEXT, "scenario": TEXT, "file": TEXT, "line?": COUNT, "verdict": TEXT,
                      "reason": TEXT_OR_NULL, "seconds": NUMBER,
                      "gates": [{"pass": FLAG_OR_NULL, "observed": NUMBER_OR_NULL, "limit": NUMBER_OR_NULL,
                                 "line?": COUNT}]}]}
COMPARISON = {"exit_code": COUNT, "cells_compared": COUNT, "regressions": COUNT, "better": COUNT,
              "changes": [{"kind": TEXT, "id": TEXT, "file": TEXT, "line": COUNT, "text": TEXT, "regression": FLAG,
                           "gated": FLAG}]}
GOOD = ("confirmed", "unaffected", "pass", "skipped")
CONTROLS = ("/control=same", "/control=planted")  # how their cells' ids end
# GitHub drops a step's full summary above this size, and annotations above this number.
SUMMARY_BYTES = 1024 * 1024
ANNOTATIONS = 10
ROWS = 50  # of a table in the summary
NAMED = 5  # cells in a warning
NOTHING_COMPARED = "nothing in common with the baseline"


@dataclasses.dataclass
class Report:
    tier: str
    code: int
    meaning: str
    seconds: float
    limit_s: float
    out: pathlib.Path
    root: pathlib.Path
    results: dict | None  # results.json, where the run wrote it
    comparison: dict | None  # comparison.json
    baseline: pathlib.Path | None
    errors: list[str]
    accepted: list = dataclasses.field(default_factory=list)  # changes, each with its accepted.Entry

    def cells(self):
        return self.results["cells"] if self.results else []

    def regressions(self):
        return [change for change in self.changes() if change["regression"]]

    def changes(self, kind=None):
        changes = self.comparison["changes"] if self.comparison else []
        return [change for change in changes if kind in (None, change["kind"])]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a reader should look at, with the place in a scenario."""

    file: str
    line: int
    title: str
    message: str


def read(path, shape):
    """The document, its texts printable, and what is wrong with it; neither where there is none."""
    try:
        document = parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, ""
    except Malformed as error:
        return None, f"{path}: {error.located}; run it again"
    except (OSError, UnicodeDecodeError) as error:
        return None, f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}; run it again"
    fault = misfit(document, shape)
    return (None, f"{path}: {fault}; run it again with the fp8lab of this checkout") if fault else (document, "")


def on_github():
    return os.environ.get("GITHUB_ACTIONS") == "true"


def is_good(cell):
    """Also of a control whose figures were all measured, and which the machine was too noisy to decide."""
    if cell["verdict"] != "inconclusive" or not cell["id"].endswith(CONTROLS):
        return cell["verdict"] in GOOD
    undecided = [gate for gate in cell["gates"] if gate["pass"] is None]
    return undecided != [] and all(None not in (gate["observed"], gate["limit"]) for gate in undecided)


def failing_line(cell):
    return next((gate["line"] for gate in cell["gates"] if gate["pass"] is not True and "line" in gate),
                cell.get("line", 0))


def findings(report):
    """Cells that did not come out well, then regressions; those of one place as one."""
    places = collections.OrderedDict()

    def add(file, line, title, cell, text):
        places.setdefault((relative(report, file), line, title), []).append(f"{cell}: {text}")

    for cell in report.cells():
        if not is_good(cell):
            add(cell["file"], failing_line(cell), cell["verdict"], cell["id"], cell["reason"] or "")
    for change in report.regressions():
        add(change["file"], change["line"], "regression", change["id"], change["text"])
    out = []
    for (file, line, title), texts in places.items():
        more = f" (and {len(texts) - 1} more like it)" if len(texts) > 1 else ""
        out.append(Finding(file, line, title, texts[0] + more))
    return out


def relative(report, file):
    """The path that GitHub knows a file by."""
    path = report.root / file
    for top in (os.environ.get("GITHUB_WORKSPACE"), report.root):
        if top and path.is_relative_to(top):
            return path.relative_to(top).as_posix()
    return file


def annotation(kind, title, message, file="", line=0):
    """A workflow command; what would end it early is escaped as GitHub's runner reads it."""

    def escaped(text, more=()):
        for character in ("%", "\r", "\n", *more):
            text = text.replace(character, f"%{ord(character):02X}")
        return text

    properties = {"file": file, "line": str(line) if file and line else "", "title": title}
    text = ",".join(f"{key}={escaped(value, (':', ','))}" for key, value in properties.items() if value)
    return f"::{kind} {text}::{escaped(message)}"


def print_findings(report):
    found = findings(report)
    if not on_github():
        for one in found:
            place = f"{one.file}:{one.line}" if one.line else one.file
            print(one_line(f"{place}: error: {one.title}: {one.message}"))
        return
    lines = [annotation("error", f"fp8lab: {one.title}", one.message, one.file, one.line) for one in found]
    if report.code == 5 or (report.code != 0 and not lines):
        lines.insert(0, annotation("error", f"ci/matrix {report.tier}", "; ".join([report.meaning, *report.errors])))
    if len(lines) > ANNOTATIONS:
        rest = len(lines) - (ANNOTATIONS - 1)
        lines[ANNOTATIONS - 1:] = [annotation("error", f"ci/matrix {report.tier}", f"and {rest} more; see the summary")]
    print("\n".join(lines), end="\n" if lines else "")


def table(head, rows):
    """Of Markdown."""
    rows = list(rows)
    lines = [head, ["---"] * len(head), *rows[:ROWS]]
    text = "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)
    return text + (f"\n… and {len(rows) - ROWS} more.\n" if len(rows) > ROWS else "") + "\n"


def verdicts(cells):
    counts = collections.Counter(cell["verdict"] for cell in cells)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or "no cells"


def headline(report):
    sign = "✅" if report.code == 0 else "⚠️" if report.code in (3, 5) else "❌"
    text = f"# {sign} ci/matrix {report.tier}: {escape.markdown(verdicts(report.cells()))}\n\n"
    text += f"Exit {report.code}: {escape.markdown(report.meaning)}. {report.seconds:.0f} s.\n\n"
    return text + "".join(f"- {escape.markdown(error)}\n" for error in report.errors) + ("\n" if report.errors else "")


def other_scenarios(report):
    """The cells that a change of the scenarios takes from the comparison, or an empty text; accepted ones are left out."""
    accepted = [change for change, _ in report.accepted]
    texts = []
    for kind, text in (("redefined", "redefined: figures and verdicts are not gated"),
                       ("gates", "with other gates: a better verdict counts as no better")):
        ids = [change["id"] for change in report.changes(kind) if change not in accepted]
        if ids:
            more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
            texts.append(f"{len(ids)} cell{'s' * (len(ids) > 1)} {text} ({', '.join(ids[:NAMED])}{more})")
    return "; ".join(texts)


def comparison_text(report):
    comparison = report.comparison
    if not comparison:
        return ""

    def row(change):
        return [escape.markdown_code(change["id"]), escape.markdown(change["text"])]

    text = f"## Against the baseline: {comparison['regressions']} regressions\n\n"
    text += (f"{comparison['cells_compared']} cells compared; {comparison['better']} figures better, "
             f"{len(report.changes('appeared'))} cells new. Timings are not judged.\n\n")
    if report.regressions():
        text += table(["cell", "worse"], map(row, report.regressions()))
    if report.accepted:
        text += f"{len(report.accepted)} changes accepted.\n\n"
        text += table(["cell", "accepted", "until", "why"],
                      [[*row(change), entry.expires, escape.markdown(entry.why)] for change, entry in report.accepted])
    if other_scenarios(report):
        figures = [change for change in report.changes("figure") if not change["gated"]]
        text += f"{escape.markdown(other_scenarios(report))}.\n\n"
        text += table(["cell", "redefined or other gates; figures are not gated"],
                      map(row, [*report.changes("redefined"), *report.changes("gates"), *figures]))
    return text


def scenarios_text(report):
    by_scenario = collections.OrderedDict()
    for cell in report.cells():
        by_scenario.setdefault(cell["scenario"], []).append(cell)
    if not by_scenario:
        return ""
    good_last = sorted(by_scenario.items(), key=lambda item: all(map(is_good, item[1])))
    rows = [[escape.markdown(name), len(cells), escape.markdown(verdicts(cells)),
             f"{sum(cell['seconds'] for cell in cells):.1f}"] for name, cells in good_last]
    return "## Scenarios\n\n" + table(["scenario", "cells", "verdicts", "seconds"], rows)


def cut(text, marks, budget):
    """As many full sections of `text`, which begin at `marks`, as `budget` bytes hold, and the number left out."""
    sections = re.split(f"(?m)^(?={marks} )", text)
    out, left = "", 0
    for section in sections:
        if left == 0 and len((out + section).encode()) <= budget:
            out += section
        else:
            left += 1
    return out, left


def step_summary(report, budget):
    """Markdown of at most `budget` bytes: what is wrong first, then figures as far as they fit."""
    note = "\n{} more sections do not fit here; `summary.md` among the run's files holds all.\n"
    budget -= len(note.encode()) + 16
    text, left = cut(headline(report) + comparison_text(report) + scenarios_text(report), "##", budget)
    try:
        summary = (report.out / "summary.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        summary = ""
    attention, figures = "", summary
    if match := re.search(r"(?m)^## Needs attention\n", summary):
        end = re.compile(r"(?m)^## ").search(summary, match.end())
        attention, figures = summary[match.start():end.start() if end else None], summary[end.start():] if end else ""
    elif match := re.search(r"(?m)^## ", summary):
        figures = summary[match.start():]
    shown, more = cut(attention, "###", budget - len(text.encode()))
    text, left = text + shown, left + more
    folded = "<details><summary>Every figure</summary>\n\n", "\n</details>\n"
    room = budget - len(text.encode()) - len("".join(folded).encode())
    shown, more = cut(figures, "##", max(room, 0))
    if shown:
        text += folded[0] + shown + folded[1]
    left += more
    return text + (note.format(left) if left else "")


def write_step_summary(report):
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        taken = os.path.getsize(path) if os.path.exists(path) else 0
        with open(path, "a", encoding="utf-8") as file:
            file.write(step_summary(report, max(SUMMARY_BYTES - taken, 0)) if taken < SUMMARY_BYTES - 4096 else "")
    except OSError as error:
        # The results stand without it.
        warn(f"$GITHUB_STEP_SUMMARY ({path}) cannot be written: {error.strerror}")


def warn(message):
    if on_github():
        print(annotation("warning", "ci/matrix", message))
    print(f"ci/matrix: warning: {one_line(message)}", file=sys.stderr)


def suite_of(report):
    """The comparison as a suite, or the run itself where it came to no results."""
    if report.results is None:
        suite = ElementTree.Element("testsuite", name="ci/matrix", tests="1", failures="0", errors="1", skipped="0")
        case = ElementTree.SubElement(suite, "testcase", classname="ci/matrix", name=report.tier, time="0")
        text = "; ".join([report.meaning, *report.errors])
        ElementTree.SubElement(case, "error", message=text, type=f"exit {report.code}").text = text
        return suite
    by_cell = collections.OrderedDict()
    for change in report.regressions():
        by_cell.setdefault(change["id"], []).append(change)
    compared = report.comparison["cells_compared"]
    is_empty = report.comparison.get("exit_code") == 5
    suite = ElementTree.Element("testsuite", name="against the baseline", tests=str(max(len(by_cell), 1)),
                                failures=str(len(by_cell)), errors=str(int(is_empty)), skipped="0", time="0")
    if not by_cell:
        name = NOTHING_COMPARED if is_empty else f"no regression in {compared} cells"
        case = ElementTree.SubElement(suite, "testcase", classname="against the baseline", name=name, time="0")
        if is_empty:
            ElementTree.SubElement(case, "error", message=name, type=f"exit {report.code}").text = name
    for cell, changes in by_cell.items():
        case = ElementTree.SubElement(suite, "testcase", classname="against the baseline", name=cell, time="0",
                                      file=changes[0]["file"])
        texts = [change["text"] for change in changes]
        failure = ElementTree.SubElement(case, "failure", message=texts[0], type="regression")
        failure.text = "\n".join(texts)
    return suite


def is_of_no_results(path):
    """Whether a junit.xml holds what suite_of() says of a run without results, and nothing else."""
    try:
        return [suite.get("name") for suite in ElementTree.parse(path).getroot()] == ["ci/matrix"]
    except (OSError, ElementTree.ParseError):
        return False


def write_junit(report):
    """Adds a suite to the run's junit.xml, so that what fails the job shows where tests show."""
    if report.results is not None and report.comparison is None:
        return
    path = report.out / "junit.xml"
    try:
        suites = ElementTree.parse(path).getroot()
    except FileNotFoundError:
        suites = ElementTree.Element("testsuites", name="fp8lab")
    except ElementTree.ParseError as error:
        warn(f"{path} is not XML ({error}), and is replaced")
        suites = ElementTree.Element("testsuites", name="fp8lab")
    suite = suite_of(report)
    suites.append(suite)
    for key in ("tests", "failures", "errors", "skipped"):
        suites.set(key, str(int(suites.get(key, "0")) + int(suite.get(key))))
    part = path.with_suffix(".part")
    ElementTree.ElementTree(suites).write(part, encoding="utf-8", xml_declaration=True)
    part.replace(path)


def publish(report):
    write_junit(report)
    print_findings(report)
    if text := other_scenarios(report):
        warn(f"against the baseline: {text}")
    if report.seconds > report.limit_s:
        warn(f"tier {report.tier} took {report.seconds:.0f} s and should take {report.limit_s} s at most")
    write_step_summary(report)
