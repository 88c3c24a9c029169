"""Memory snapshots for PyTorch's memory viewer: a timeline replayed on invented addresses.

The ledger has no addresses, so blocks get them here; a freed address is used again for a block of the same size. A
block whose holder changes is freed and allocated again at its address, so that the viewer shows each holder's bytes
under its name. The frames, which the viewer shows as a stack trace, name holder, owner and phase. The time is the
number of the event, in microseconds.
"""

import pickle
from typing import Any

from timeline import Timeline, TimelineError

PROTOCOL = 4  # the viewer's own unpickler reads 2 to 4
BASE = 0x7F0000000000
ROUNDING = 512


class _Space:
    """The address space. A block gets the address of the last freed block of its size, or else one at the end."""

    def __init__(self) -> None:
        self.end = BASE
        self.free: dict[int, list[int]] = {}

    def take(self, size: int) -> int:
        spare = self.free.get(size)
        if spare:
            return spare.pop()
        self.end += size
        return self.end - size

    def give(self, address: int, size: int) -> None:
        self.free.setdefault(size, []).append(address)


def rounded(size: int) -> int:
    return -(-size // ROUNDING) * ROUNDING


def snapshot(timeline: Timeline) -> dict[str, Any]:
    """The snapshot of a timeline. Raises TimelineError if an event frees bytes that its holder does not hold."""
    space = _Space()
    live: dict[tuple[int, int], list[int]] = {}  # (holder, size): addresses
    trace: list[dict[str, Any]] = []
    blocks: dict[int, tuple[int, list[dict[str, Any]]]] = {}  # by address: requested size, frames
    frames_of: dict[tuple[int, str, int], list[dict[str, Any]]] = {}

    def frames(holder: int, phase: str, step: int) -> list[dict[str, Any]]:
        key = (holder, phase, step)
        if key not in frames_of:
            named = timeline.holders[holder]
            frames_of[key] = [
                {"name": named.name, "filename": named.kind, "line": 0},
                {"name": f"{phase} of step {step}", "filename": "phase", "line": step},
            ]
        return frames_of[key]

    def note(action: str, address: int, size: int, number: int, stack: list[dict[str, Any]]) -> None:
        trace.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": number, "frames": stack})

    def allocate(address: int, holder: int, number: int) -> None:
        event = timeline.events[number]
        stack = frames(holder, event.phase, event.step)
        live.setdefault((holder, event.size), []).append(address)
        blocks[address] = (event.size, stack)
        note("alloc", address, event.size, number, stack)

    def release(holder: int, number: int) -> int:
        event = timeline.events[number]
        held = live.get((holder, event.size))
        if not held:
            raise TimelineError(
                f"event {number} frees or moves {event.size} B that {timeline.holders[holder].name} does not hold"
            )
        address = held.pop()
        del blocks[address]
        stack = frames(holder, event.phase, event.step)
        note("free_requested", address, event.size, number, stack)
        note("free_completed", address, event.size, number, stack)
        return address

    for number, event in enumerate(timeline.events):
        if event.delta > 0:
            allocate(space.take(rounded(event.size)), event.holder, number)
        elif event.delta < 0:
            space.give(release(event.holder, number), rounded(event.size))
        elif event.source is not None:
            allocate(release(event.source, number), event.holder, number)
    segment = _segment(space.end - BASE, blocks)
    opening = {
        "action": "segment_alloc",
        "addr": BASE,
        "size": segment["total_size"],
        "stream": 0,
        "time_us": 0,
        "frames": [],
    }
    return {"segments": [segment], "device_traces": [[opening, *trace]], "allocator_settings": {}}


def _segment(total: int, blocks: dict[int, tuple[int, list[dict[str, Any]]]]) -> dict[str, Any]:
    """The memory segment at the end of the timeline: its live blocks and the gaps between them."""
    out: list[dict[str, Any]] = []
    at = BASE
    for address in sorted(blocks):
        size, stack = blocks[address]
        if address > at:
            out.append({"address": at, "size": address - at, "requested_size": 0, "state": "inactive", "frames": []})
        out.append(
            {"address": address, "size": rounded(size), "requested_size": size, "state": "active_allocated", "frames": stack}
        )
        at = address + rounded(size)
    if at < BASE + total:
        out.append({"address": at, "size": BASE + total - at, "requested_size": 0, "state": "inactive", "frames": []})
    used = sum(block["size"] for block in out if block["state"] == "active_allocated")
    asked = sum(block["requested_size"] for block in out)
    return {
        "device": 0,
        "address": BASE,
        "total_size": total,
        "allocated_size": used,
        "active_size": used,
        "requested_size": asked,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": out,
    }


def document(timeline: Timeline) -> bytes:
    return pickle.dumps(snapshot(timeline), protocol=PROTOCOL)
