"""Google Benchmark's JSON: how near a row is to its physical bound, and to a peer's row of the same name."""

import dataclasses
import json
import pathlib
import re
import statistics
from typing import Any

from load import Problem

PEER_PREFIX = "peer_"
_MEDIAN = "p50_us"
_TO_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
# Names differ in how long a row ran, and not in what it measures.
_RUN_LENGTH = re.compile(r"/(iterations|repeats|min_time|min_warmup_time):[^/]+")
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
    """One benchmark; of repetitions the median."""

    name: str
    label: str  # of its set
    path: pathlib.Path
    device: str
    nanoseconds: float | None
    counters: dict[str, float]
    reason: str = ""  # why there is no time

    @property
    def source(self) -> str:
        return _source(self.label, self.path)


@dataclasses.dataclass
class Bench:
    ours: list[Row] = dataclasses.field(default_factory=list)
    peers: dict[str, list[Row]] = dataclasses.field(default_factory=dict)  # by peer
    contexts: list[tuple[str, dict[str, Any]]] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ours or self.peers)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """1 is as fast as what it is compared with; above is faster."""

    name: str
    source: str
    to: str  # memcpy, copy, gemm, bound, or a peer's name, with its set's where that is another one
    value: float | None
    reason: str = ""


def load(files: list[tuple[str, pathlib.Path]], problems: list[Problem]) -> Bench:
    bench = Bench()
    for label, path in files:
        rows = _rows(label, path, problems, bench)
        if path.name.startswith(PEER_PREFIX):
            bench.peers.setdefault(path.stem[len(PEER_PREFIX) :], []).extend(rows)
        else:
            bench.ours += rows
    return bench


def _rows(label: str, path: pathlib.Path, problems: list[Problem], bench: Bench) -> list[Row]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        entries, context = document["benchmarks"], document.get("context", {})
    except (OSError, ValueError) as error:
        problems.append(Problem(str(path), "", f"is not a benchmark's JSON: {error}"))
        return []
    except (KeyError, TypeError, AttributeError):
        problems.append(Problem(str(path), "`benchmarks`", "is missing"))
        return []
    if not isinstance(entries, list) or not isinstance(context, dict):
        problems.append(Problem(str(path), "`benchmarks`", "is no list, or `context` no object"))
        return []
    bench.contexts.append((_source(label, path), context))
    device = next((str(context[key]) for key in ("gpu", "device", "cuda_device") if key in context), "cpu")
    by_name: dict[str, list[dict[str, Any]]] = {}
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            problems.append(Problem(str(path), f"benchmark {number}", "has no name"))
        elif entry.get("run_type", "iteration") == "iteration":
            by_name.setdefault(_RUN_LENGTH.sub("", str(entry.get("run_name") or entry["name"])), []).append(entry)
    return [_row(Row(name, label, path, device, None, {}), entries_of) for name, entries_of in by_name.items()]


def _source(label: str, path: pathlib.Path) -> str:
    return f"{label}/{path.stem}"


def _row(row: Row, entries: list[dict[str, Any]]) -> Row:
    """With what its entries say."""
    good = [entry for entry in entries if not entry.get("error_occurred") and not entry.get("skipped")]
    if not good:
        reason = next((str(e[k]) for e in entries for k in ("error_message", "skip_message") if e.get(k)), "it did not run")
        return dataclasses.replace(row, reason=reason)
    times = [
        entry["real_time"] * _TO_NS.get(entry.get("time_unit", "ns"), 1.0)
        for entry in good
        if _is_number(entry.get("real_time"))
    ]
    keys = {key for entry in good for key, value in entry.items() if key not in _NOT_COUNTERS and _is_number(value)}
    counters = {key: statistics.median(e[key] for e in good if _is_number(e.get(key))) for key in sorted(keys)}
    return dataclasses.replace(row, nanoseconds=statistics.median(times) if times else None, counters=counters)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def to_bounds(bench: Bench) -> list[Ratio]:
    """What the rows themselves say: counters called `of_...`."""
    return [
        Ratio(row.name, row.source, key[3:], value)
        for row in bench.ours
        for key, value in row.counters.items()
        if key.startswith("of_")
    ]


def to_peers(bench: Bench) -> list[Ratio]:
    """The peer's time over ours, row by row of one name; the peer's of the same set, or of another one where that has none."""
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
            if time and its_time:
                out.append(Ratio(row.name, row.source, to, its_time / time))
            else:
                out.append(Ratio(row.name, row.source, to, None, row.reason or other.reason or "a time is absent"))
    return out


def _distance(row: Row, other: Row) -> tuple[bool, bool]:
    """Files that are given one by one may have the label of others in a directory of the same name."""
    return other.label != row.label, other.path.parent != row.path.parent


def _times(row: Row, other: Row) -> tuple[float | None, float | None]:
    """Medians where both have one: one slow iteration moves a mean."""
    medians = row.counters.get(_MEDIAN), other.counters.get(_MEDIAN)
    return medians if all(medians) else (row.nanoseconds, other.nanoseconds)
