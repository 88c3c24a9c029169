"""Export of timelines as files for the viewers of other tools."""

import json
import pathlib
from typing import Any

import snapshot
import timeline as timelines
from figures import slug
from files import Files
from load import Cell, Problem
from records import ARMS
from timeline import KINDS, Timeline, segments


def write(
    cells: list[Cell], directory: pathlib.Path, files: Files, snapshots: bool, traces: bool, problems: list[Problem]
) -> tuple[int, int]:
    """DIR/snapshots/<set>-<cell>.<arm>.pickle and DIR/traces/<set>-<cell>.json; of the lowest rank, the only one whose
    results are kept. Returns how many of each were written."""
    snapshots_written = traces_written = 0
    for cell in cells:
        name = f"{cell.results.index}-{slug(cell.id)}"
        arms = []
        for arm in ARMS:
            path = cell.timeline(arm)
            if path is None:
                continue
            try:
                read = timelines.read(path)
                if snapshots:
                    files.write(directory / "snapshots" / f"{name}.{arm}.pickle", snapshot.document(read))
                    snapshots_written += 1
                arms.append((arm, read))
            except timelines.TimelineError as error:
                problem = Problem(str(path), f"timeline {cell.id}, {arm}", str(error))
                if problem not in problems:
                    problems.append(problem)
        if traces and arms:
            files.write(directory / "traces" / f"{name}.json", trace(arms, 0, cell.id))
            traces_written += 1
    return snapshots_written, traces_written


def trace_events(timeline: Timeline, name: str, rank: int, pid: int) -> list[dict[str, Any]]:
    """A span for each phase, and counters of bytes by kind of holder; an arm is a process. A timeline has the order of
    events but no times, so one event is one microsecond."""
    out: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"rank {rank}: {name}"}},
        {"ph": "M", "pid": pid, "name": "process_labels", "args": {"labels": "1 us is one event"}},
        {"ph": "M", "pid": pid, "tid": 0, "name": "thread_name", "args": {"name": "phases"}},
    ]
    for segment in segments(timeline):
        out.append(
            {
                "ph": "X",
                "pid": pid,
                "tid": 0,
                "name": segment.phase,
                "cat": "phase",
                "ts": segment.first,
                "dur": segment.last - segment.first,
                "args": {"step": segment.step},
            }
        )
    for mark in timeline.marks:
        out.append(
            {
                "ph": "i",
                "pid": pid,
                "tid": 0,
                "s": "p",
                "name": mark.name,
                "ts": mark.event,
                "args": {"live_bytes": mark.live_bytes, "retained_bytes": mark.retained_bytes},
            }
        )
    held = dict.fromkeys(dict.fromkeys([*KINDS, *(holder.kind for holder in timeline.holders)]), 0)
    present = {holder.kind for holder in timeline.holders}
    for number, event in enumerate(timeline.events):
        for holder, change in timeline.changes(number):
            held[timeline.holders[holder].kind] += change
        out.append(
            {
                "ph": "C",
                "pid": pid,
                "name": "bytes by holder",
                "ts": number,
                "args": {kind: size for kind, size in held.items() if kind in present},
            }
        )
    return out


def trace(arms: list[tuple[str, Timeline]], rank: int, cell_id: str) -> str:
    """The trace of the arms of one cell."""
    all_events = [event for pid, (arm, timeline) in enumerate(arms) for event in trace_events(timeline, arm, rank, pid)]
    full = {"displayTimeUnit": "ms", "otherData": {"cell": cell_id}, "traceEvents": all_events}
    return json.dumps(full, separators=(",", ":"))
