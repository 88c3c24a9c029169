"""Google Benchmark's JSON: rows relative to their physical bound, and to a peer's row of the same name."""

import dataclasses
import math
import pathlib
import re
import statistics
import zlib
from typing import Any

from documents import Malformed, parsed, printable, read_text, short
from load import Problem
from shape import FLAG, LIST, OBJECT, TEXT, Shape, is_number, members, plain_fault

PEER_PREFIX = "peer_"
_MEDIAN = "p50_us"
_TO_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
# The part of a name that gives the length of the row's run; it does not belong to the row's identity.
_RUN_LENGTH = re.compile(r"/(iterations|repeats|min_time|min_warmup_time):[^/]+")
_TIMED = "iteration"  # a run_type
# The shape of a row that can be shown. All other members of a row that are numbers are counters.
_ENTRY = Shape(
    members(
        {"name": TEXT},
        {
            "run_name": TEXT,
            "run_type": TEXT,
            "real_time": {"type": "number", "minimum": 0},
            "time_unit": {"enum": [*_TO_NS]},
            "error_occurred": FLAG,
            "error_message": TEXT,
            "skip_message": TEXT,
        },
    )
)
_DOCUMENT, _CONTEXT = Shape(members({"benchmarks": LIST})), Shape(OBJECT)
_NOT_COUNTERS = frozenset(
    {
        "real_time",
        "cpu_time",
        "iterations",
        "repetitions",
        "repetition_index",
        "threads",
        "family_index",
        "per_family_instance_index",
        "time_unit",
        "aggregate_unit",
    }
)


@dataclasses.dataclass
class Row:
    """One benchmark; the median if it was repeated."""

    name: str
    label: str  # label of its result set
    path: pathlib.Path
    device: str
    nanoseconds: float | None
    counters: dict[str, float]
    reason: str = ""  # why the time is absent

    @property
    def source(self) -> str:
        return _source(self.label, self.path)


@dataclasses.dataclass
class Bench:
    ours: list[Row] = dataclasses.field(default_factory=list)
    peers: dict[str, list[Row]] = dataclasses.field(default_factory=dict)  # by name of the peer
    contexts: list[tuple[str, dict[str, Any]]] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ours or self.peers)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The speed of a row relative to a bound or a peer: 1 is equally fast, above 1 is faster."""

    name: str
    source: str
    to: str  # memcpy, copy, gemm, bound, or a peer's name, with the label of its set if that differs
    value: float | None
    reason: str = ""


def load(files: list[tuple[str, pathlib.Path]], problems: list[Problem]) -> Bench:
    bench = Bench()
    for label, path in files:
        rows = _rows(label, path, problems, bench)
        if path.name.startswith(PEER_PREFIX):
            bench.peers.setdefault(path.name[len(PEER_PREFIX) :].partition(".json")[0], []).extend(rows)
        else:
            bench.ours += rows
    return bench


def _rows(label: str, path: pathlib.Path, problems: list[Problem], bench: Bench) -> list[Row]:
    def problem(record: str, text: str) -> None:
        remedy = "run the benchmark again with --benchmark_out_format=json"
        problems.append(Problem(printable(str(path)), record, f"{text}; {remedy}"))

    try:
        document = parsed(read_text(path))
    except (OSError, EOFError, zlib.error) as error:
        problem("", f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return []
    except Malformed as error:
        problem(error.record, str(error))
        return []
    except UnicodeDecodeError as error:
        problem("", f"is not text in UTF-8: {error}")
        return []
    if wrong := _DOCUMENT.fault(document):
        problem("", wrong)
        return []
    context = document.get("context", {})
    if wrong := _CONTEXT.fault(context, "context") or plain_fault(context, "context"):
        problem("", f"{wrong}; its rows are shown without it")
        context = {}
    bench.contexts.append((_source(label, path), context))
    device = next((str(context[key]) for key in ("gpu", "device", "cuda_device") if key in context), "cpu")
    by_name: dict[str, list[dict[str, Any]]] = {}
    for number, entry in enumerate(document["benchmarks"], 1):
        if wrong := _ENTRY.fault(entry):
            name = entry.get("name") if isinstance(entry, dict) else None
            problem(f"benchmark {number}{f' ({short(name)})' if isinstance(name, str) else ''}", wrong)
        elif entry.get("run_type", _TIMED) == _TIMED:
            by_name.setdefault(_RUN_LENGTH.sub("", entry.get("run_name") or entry["name"]), []).append(entry)
    return [_row(Row(name, label, path, device, None, {}), entries_of) for name, entries_of in by_name.items()]


def _source(label: str, path: pathlib.Path) -> str:
    return f"{label}/{path.stem}"


def _row(row: Row, entries: list[dict[str, Any]]) -> Row:
    """The row with the time and the counters of its entries."""
    good = [entry for entry in entries if not entry.get("error_occurred") and not entry.get("skipped")]
    if not good:
        reason = next((e[k] for e in entries for k in ("error_message", "skip_message") if e.get(k)), "it did not run")
        return dataclasses.replace(row, reason=reason)
    times = [
        entry["real_time"] * _TO_NS[entry.get("time_unit", "ns")]
        for entry in good
        if "real_time" in entry
    ]
    keys = {key for entry in good for key, value in entry.items() if key not in _NOT_COUNTERS and is_number(value)}
    counters = {key: statistics.median(e[key] for e in good if is_number(e.get(key))) for key in sorted(keys)}
    return dataclasses.replace(row, nanoseconds=statistics.median(times) if times else None, counters=counters)


def to_bounds(bench: Bench) -> list[Ratio]:
    """The ratios that rows themselves report, in counters named `of_...`."""
    return [
        Ratio(row.name, row.source, key[3:], value)
        for row in bench.ours
        for key, value in row.counters.items()
        if key.startswith("of_")
    ]


def to_peers(bench: Bench) -> list[Ratio]:
    """The peer's time over ours, by row of the same name. The peer's row is in the same set, or else in another."""
    out = []
    for peer, rows in bench.peers.items():
        theirs: dict[str, list[Row]] = {}
        for row in rows:
            theirs.setdefault(row.name, []).append(row)
        for row in bench.ours:
            if row.name not in theirs:
                continue
            other = min(theirs[row.name], key=lambda one: _distance(row, one))
            to = f"{peer} (set {other.label})" if any(_distance(row, other)) else peer
            time, its_time = _times(row, other)
            if time and its_time and math.isfinite(its_time / time):
                out.append(Ratio(row.name, row.source, to, its_time / time))
            else:
                out.append(Ratio(row.name, row.source, to, None, row.reason or other.reason or "a time is absent"))
    return out


def _distance(row: Row, other: Row) -> tuple[bool, bool]:
    """The order of preference: same label, then same folder, since files that are passed singly may share a label."""
    return other.label != row.label, other.path.parent != row.path.parent


def _times(row: Row, other: Row) -> tuple[float | None, float | None]:
    """The medians if both rows have one, else the means, which a single slow iteration shifts."""
    medians = row.counters.get(_MEDIAN), other.counters.get(_MEDIAN)
    return medians if all(medians) else (row.nanoseconds, other.nanoseconds)
