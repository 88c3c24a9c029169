"""Reads the results of `fp8lab run`. Parts that cannot be read become a Problem, which names file and record; the rest
is kept."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from documents import Malformed, cleaned, integer, one_line, parsed, printable, read_text, short
from records import GOOD_VERDICTS, fault_of, fault_of_finding, usable_environment

SCHEMA = "fp8lab.results/"
SCHEMA_VERSION = 1
NO_CELL = "holds no cell that can be shown"
RUN_AGAIN = "; left out: run its scenario again to have it shown"


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that could not be read. `record` names the part of the file; empty: the entire file."""

    file: str
    record: str
    text: str

    def __str__(self) -> str:
        return one_line(f"{self.file}: {self.record + ': ' if self.record else ''}{self.text}")


@dataclasses.dataclass(frozen=True)
class Figure:
    """A metric of one side. A `value` of None is absent, and `reason` states why."""

    value: float | None
    predicted: float | None
    unit: str
    reason: str = ""


@dataclasses.dataclass
class Cell:
    """One finished cell: its record as read, and its result set."""

    record: dict[str, Any]
    results: "ResultSet"

    @property
    def id(self) -> str:
        return self.record["id"]

    @property
    def scenario(self) -> str:
        return self.record["scenario"]

    @property
    def fix(self) -> str:
        return self.record["fix"] or ""

    @property
    def verdict(self) -> str:
        return self.record["verdict"]

    @property
    def is_control(self) -> bool:
        """Added by `fp8lab run --controls`."""
        return self.id.endswith(("/control=same", "/control=planted"))

    @property
    def is_undecided(self) -> bool:
        """A control that the machine was too noisy to decide: it is counted, and fails nothing."""
        return self.record.get("undecided") or False

    @property
    def is_bad(self) -> bool:
        good = self.record.get("good")  # None: an older fp8lab wrote the record
        return self.verdict not in GOOD_VERDICTS if good is None else not good

    @property
    def device(self) -> str:
        return str(self.record["config"].get("device", "?"))

    @property
    def recipe(self) -> str:
        return str(self.record["config"].get("training.recipe", "?"))

    @property
    def point(self) -> str:
        """The cell's id without the scenario's name: its axes."""
        return self.id.partition("/")[2] or "(one cell)"

    @property
    def anchor(self) -> str:
        return f"cell/{self.results.index}/{self.id}"

    def arm(self, name: str) -> dict[str, Any] | None:
        return self.record["arms"].get(name)

    def figure(self, side: str, metric: str) -> Figure:
        """The figure of `metric`. `side` is an arm, or `difference`, before minus after."""
        if side == "difference":
            before, after = self.figure("before", metric), self.figure("after", metric)
            return Figure(
                _less(before.value, after.value),
                _less(before.predicted, after.predicted),
                before.unit or after.unit,
                before.reason or after.reason,
            )
        arm = self.arm(side)
        if arm is None:
            return Figure(None, None, "", f"the cell has no arm {side}")
        entry = arm["metrics"].get(metric)
        if entry is None:
            return Figure(None, None, "", arm.get("reason") or "not measured")
        return Figure(entry["value"], entry["predicted"], entry["unit"], entry.get("reason", ""))

    def ending(self, side: str) -> str:
        """How a failed arm ended: `SIGSEGV`, `error`; empty for an arm that is ok or absent."""
        arm = self.arm(side)
        return "" if arm is None or arm["status"] == "ok" else arm.get("signal") or arm["status"]

    def timeline(self, side: str) -> pathlib.Path | None:
        """The path of the arm's memory timeline; None if there is none below the set's folder."""
        name = (self.record.get("timelines") or {}).get(side)
        if self.results.root is None or not name:
            return None
        path = self.results.root / name
        folder = self.results.root.resolve() / "timelines"
        return path if path.is_file() and path.resolve().is_relative_to(folder) else None


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a fix changes most in a run, as the run recorded it."""

    text: str
    kind: str  # what differs; `held` without a before arm
    fix: str
    scenarios: list[str]
    metric: str
    unit: str
    before: float | None
    after: float | None
    predicted: float | None  # value for before
    shown: bool
    reason: str  # why it is not shown
    cells: int  # that show it
    of: int
    cell: str  # the id of the cell that shows it most


@dataclasses.dataclass
class ResultSet:
    """The results of one run. A report compares equal cells of several sets."""

    label: str
    path: str
    index: int = 0
    root: pathlib.Path | None = None
    environment: dict[str, Any] | None = None
    complete: bool | None = None
    unseen_fixes: list[str] = dataclasses.field(default_factory=list)  # a line for each scenario whose fix no cell shows
    cells: list[Cell] = dataclasses.field(default_factory=list)
    findings: list[Finding] | None = None  # largest effect first; None: the program that wrote the results records none

    @functools.cached_property
    def by_id(self) -> dict[str, Cell]:
        return {cell.id: cell for cell in self.cells}

    @property
    def program(self) -> str:
        program = (self.environment or {}).get("program") or {}
        return f"fp8lab {program.get('version', 'of an unknown version')}" + (f" at {self.commit}" if self.commit else "")

    @property
    def commit(self) -> str:
        program = (self.environment or {}).get("program") or {}
        commit = program.get("git_commit")
        return f"{commit[:12]}{', modified' if program.get('git_dirty') else ''}" if commit else ""

    @property
    def devices(self) -> list[str]:
        return sorted({cell.device for cell in self.cells})


def _less(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


class Loader:
    """Reads the files and directories of a report's arguments. Collects problems instead of raising."""

    def __init__(self) -> None:
        self.sets: list[ResultSet] = []
        self.bench_files: list[tuple[str, pathlib.Path]] = []  # (label of the set, file)
        self.problems: list[Problem] = []
        self._directories: set[str] = set()  # labels of directories

    def load(self, argument: str) -> None:
        label, path = _labelled(argument)
        label = printable(label)
        if path.is_dir():
            self._directory(label or path.resolve().name, path)
        elif not path.exists():
            self._problem(path, "", "there is no such file or directory")
        elif path.suffix == ".jsonl":
            self._add(label or path.resolve().parent.name, path, path.parent, self._lines(path), None, None)
        else:
            self._file(label, path)

    def _problem(self, path: pathlib.Path | str, record: str, text: str) -> None:
        self.problems.append(Problem(printable(str(path)), printable(record), printable(text)))

    def _directory(self, label: str, path: pathlib.Path) -> None:
        try:
            os.scandir(path).close()
            os.stat(path / ".")
        except OSError as error:
            self._problem(path, "", f"cannot be read: {error.strerror}; give your user the right to read and enter it")
            return
        label = self._free_label(label)
        benches = sorted((path / "bench").glob("*.json"))
        self.bench_files += [(label, file) for file in benches]
        full = next((path / name for name in ("results.json", "results.json.gz") if (path / name).is_file()), None)
        if full is not None:
            self._results(label, full)
        elif (path / "results.jsonl").is_file():
            self._problem(
                path / "results.jsonl", "", "the run did not end, so there is no results.json; its finished cells are shown"
            )
            self._add(label, path, path, self._lines(path / "results.jsonl"), self._environment(path), False)
        elif not benches:
            self._problem(path, "", "holds neither results.json nor results.jsonl nor bench/*.json")
        self._directories.add(label)

    def _file(self, label: str, path: pathlib.Path) -> None:
        text = self._text(path)
        if text is None:
            self._lines_beside(label or path.resolve().parent.name, path)
        elif '"benchmarks"' in text and SCHEMA not in text[:200]:
            self.bench_files.append((label or path.resolve().parent.name, path))
        else:
            self._results(label or path.resolve().parent.name, path, text)

    def _text(self, path: pathlib.Path) -> str | None:
        try:
            text = read_text(path)
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            self._problem(path, "", f"cannot be read: {getattr(error, 'strerror', None) or error}")
            return None
        if not text.strip():
            self._problem(path, "", "is empty")
            return None
        return text

    def _environment(self, root: pathlib.Path) -> dict[str, Any] | None:
        path = root / "environment.json"
        text = self._text(path) if path.is_file() else None
        if text is None:
            return None
        try:
            return self._usable(path, parsed(text))
        except Malformed as error:
            self._problem(path, error.record, f"{error}; left out")
            return None

    def _usable(self, path: pathlib.Path, environment: Any) -> dict[str, Any] | None:
        """The parts of an environment that can be shown."""
        if not isinstance(environment, dict):
            self._problem(path, "`environment`", "must be an object, as `fp8lab env --json` prints it; left out")
            return None
        usable, faults = usable_environment(environment)
        for fault in faults:
            self._problem(path, "", f"{fault}; this part is left out; `fp8lab env --json` prints what belongs there")
        return usable

    def _results(self, label: str, path: pathlib.Path, text: str | None = None) -> None:
        if text is None:
            text = self._text(path)
        if text is None:
            self._lines_beside(label, path)
            return
        try:
            document = parsed(text)
        except Malformed as error:
            self._cut_off(label, path, text, error)
            return
        if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
            self._problem(path, "", "is no results file: it names no schema; give what `fp8lab run -o` left")
        elif not self._known_schema(path, document["schema"]):
            pass
        elif not isinstance(document.get("cells"), list):
            self._problem(path, "`cells`", "is no list of cells; give the results.json that `fp8lab run -o` left")
        else:
            named = [(f"cell {number}", record) for number, record in enumerate(document["cells"], 1)]
            environment = self._usable(path, document.get("environment"))
            self._add(label, path, path.parent, named, environment, document.get("complete"), document.get("unseen_fixes"))
            self.sets[-1].findings = self._findings(path, document.get("findings"))

    def _findings(self, path: pathlib.Path, found: Any) -> list[Finding] | None:
        if found is None:
            return None
        out = []
        for number, one in enumerate(found if isinstance(found, list) else [found], 1):
            if fault := fault_of_finding(one):
                self._problem(path, f"finding {number}", f"{fault}; left out")
                continue
            texts = {key: one.get(key) or "" for key in ("kind", "fix", "metric", "unit", "reason", "cell")}
            values = {key: one.get(key) for key in ("before", "after", "predicted")}
            rest = {key: one[key] for key in ("text", "scenarios", "shown", "cells", "of")}
            out.append(Finding(**texts, **values, **rest))
        return out

    def _lines_beside(self, label: str, path: pathlib.Path) -> None:
        lines = path.parent / "results.jsonl"
        if path.name in ("results.json", "results.json.gz") and _has_text(lines):
            self._add(label, path, path.parent, self._lines(lines), self._environment(path.parent), False)

    def _known_schema(self, path: pathlib.Path, schema: str) -> bool:
        name, _, version = schema.rpartition("/")
        if name + "/" != SCHEMA or not re.fullmatch("[0-9]{1,9}", version):
            self._problem(path, "`schema`", f"is `{short(schema)}`, and a report is made of {SCHEMA}{SCHEMA_VERSION}")
            return False
        if int(version) > SCHEMA_VERSION:
            self._problem(
                path,
                "`schema`",
                f"is {schema}, newer than {SCHEMA}{SCHEMA_VERSION}, which this version reads; "
                "use the fp8lab that wrote it",
            )
            return False
        return True

    def _cut_off(self, label: str, path: pathlib.Path, text: str, error: Malformed) -> None:
        """Recovers cells of an incomplete results.json: from results.jsonl, or else those before the break."""
        schema = re.match(r'\s*\{\s*"schema"\s*:\s*"([^"]*)"', text)
        if schema and not self._known_schema(path, schema[1]):
            return
        lines = path.parent / "results.jsonl"
        if _has_text(lines) and lines.resolve() != path.resolve():
            self._problem(path, error.record, f"is incomplete: {error}; results.jsonl next to it is shown instead")
            self._add(label, path, path.parent, self._lines(lines), self._environment(path.parent), False)
            return
        records = list(_complete_cells(text))
        last = f"after cell {len(records)}" + (
            f" ({records[-1].get('id')})" if records and isinstance(records[-1], dict) else ""
        )
        self._problem(path, last, f"is cut off or broken: {error.located}; what comes before is shown")
        named = [(f"cell {number}", record) for number, record in enumerate(records, 1)]
        self._add(label, path, path.parent, named, self._environment(path.parent), False)

    def _lines(self, path: pathlib.Path) -> Iterable[tuple[str, Any]]:
        """The last line of each cell, because a resumed run appends another line for a cell that has changed."""
        text = self._text(path)
        found: dict[str, tuple[str, Any]] = {}
        # Not splitlines(), which also splits at Unicode line separators inside the texts of a record.
        lines = text.removesuffix("\n").split("\n") if text else []
        for number, line in enumerate(lines, 1):
            name = f"line {number}"
            try:
                record = parsed(line)
            except Malformed as error:
                self._problem(path, name, f"is cut off or broken: {error}; the other lines are shown")
                continue
            cell = record.get("id") if isinstance(record, dict) else None
            found[cell if isinstance(cell, str) else name] = (name, record)
        return found.values()

    def _add(
        self,
        label: str,
        path: pathlib.Path,
        root: pathlib.Path,
        named: Iterable[tuple[str, Any]],
        environment: dict[str, Any] | None,
        complete: Any,
        unseen: Any = None,
    ) -> None:
        results = ResultSet(self._free_label(label), printable(str(path)), len(self.sets), root, environment)
        results.complete = complete if isinstance(complete, bool) else None
        results.unseen_fixes = [one_line(text) for text in unseen if isinstance(text, str)] if isinstance(unseen, list) else []
        seen: dict[str, str] = {}
        for name, record in named:
            fault = fault_of(record)
            if fault:
                self._problem(path, _named(name, record), fault + RUN_AGAIN)
            elif record["id"] in seen:
                same = f"is the same cell as {seen[record['id']]}: results of two runs are mixed; the first is shown"
                self._problem(path, _named(name, record), same)
            else:
                seen[record["id"]] = name
                results.cells.append(Cell(record, results))
        if not results.cells:
            self._problem(path, "", NO_CELL)
        self.sets.append(results)

    def _free_label(self, label: str) -> str:
        taken = {results.label for results in self.sets} | self._directories
        return next(name for name in (label, *(f"{label} ({n})" for n in range(2, len(taken) + 3))) if name not in taken)


def _labelled(argument: str) -> tuple[str, pathlib.Path]:
    """Splits `LABEL=PATH`, unless a file has that name."""
    path = pathlib.Path(argument)
    label, equals, rest = argument.partition("=")
    if equals and label and rest and "/" not in label and not path.exists():
        return label, pathlib.Path(rest)
    return "", path


def _named(name: str, record: Any) -> str:
    found = record.get("id") if isinstance(record, dict) else None
    return f"{name} ({short(found)})" if isinstance(found, str) else name


def _has_text(file: pathlib.Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _complete_cells(text: str) -> Iterator[Any]:
    start = re.search(r'"cells"\s*:\s*\[', text)
    if not start:
        return
    decoder, position = json.JSONDecoder(parse_int=integer), start.end()
    while True:
        position = re.compile(r"[\s,]*").match(text, position).end()  # type: ignore[union-attr]
        try:
            record, position = decoder.raw_decode(text, position)
            yield cleaned(record)
        except (ValueError, RecursionError):
            return
