"""Chrome and Perfetto traces: a span for each phase, and counters of bytes by kind of holder. A process of the trace is
an arm.

A timeline has the order of events but no times, so one event is one microsecond of the trace.
"""

import json
from typing import Any

from timeline import KINDS, Timeline, segments


def events(timeline: Timeline, name: str, rank: int, pid: int) -> list[dict[str, Any]]:
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


def document(arms: list[tuple[str, Timeline]], rank: int, cell_id: str) -> str:
    """The trace of the arms of one cell."""
    all_events = [event for pid, (arm, timeline) in enumerate(arms) for event in events(timeline, arm, rank, pid)]
    full = {"displayTimeUnit": "ms", "otherData": {"cell": cell_id}, "traceEvents": all_events}
    return json.dumps(full, separators=(",", ":"))
