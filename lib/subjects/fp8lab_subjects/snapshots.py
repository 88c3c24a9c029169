"""Snapshots of PyTorch's CUDA allocator, of any program: who asked for the memory that is in use, the peak of the
recorded history, and what one snapshot holds that another does not. Imports no PyTorch.

    python3 -m fp8lab_subjects.snapshots A.pickle [B.pickle]

prints a document of JSON, schema fp8lab.snapshot/1, which `fp8lab snapshot` shows.
"""

import collections
import functools
import json
import os
import re
import sys

from . import plain_pickle

SCHEMA = "fp8lab.snapshot/1"
TIMELINE = "fp8lab.timeline/1"
MOST_FRAMES, MOST_ROWS, MOST_EVENTS = 12, 40, 50_000
GRAIN = 512  # the allocator rounds sizes up to it
# More is refused: a small pickle may refer to one list millions of times.
MOST_ITEMS, MOST_LETTERS = 4_000_000, 4096
MOST_NUMBER = (1 << 63) - 1  # JSON's readers have no larger integers
MOST_DEVICES = 1 << 16
UNKNOWN = ("without a stack", "")
INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
# Files whose functions ask on behalf of others.
PASSED_OVER = re.compile(r"[/\\]torch[/\\]|^<|[/\\]lib[/\\]python[\d.]+[/\\][^/\\]*$|\.(c|cc|cpp|cu|h|hpp)$|^\?\?$|^$")
IN_USE, WAITING = "active_allocated", ("active_pending_free", "active_awaiting_free")


def integer(value, place, high=MOST_NUMBER):
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise ValueError(f"{place} is no integer from 0 to {high}")
    return value


def text(value):
    """A text that JSON can hold."""
    return value[:MOST_LETTERS].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


class Stack(tuple):
    """((file, line, function), ...), the innermost first. Its hash is computed once."""

    def __hash__(self):
        if "hash" not in self.__dict__:
            self.hash = super().__hash__()
        return self.hash


class Stacks:
    """Reads the stacks of a snapshot; counts what it is read into."""

    def __init__(self):
        self.items, self.read, self.known = 0, {}, {}

    def count(self, items):
        self.items += items
        if self.items > MOST_ITEMS:
            raise ValueError(f"it has more than {MOST_ITEMS} blocks, events and frames")

    def of(self, frames, where):
        frames = frames or ()
        if id(frames) not in self.read:
            self.count(len(frames))
            stack = Stack(
                (text(one.get("filename")), integer(one.get("line") or 0, f"{where}.frames[{index}].line"), text(one.get("name")))
                for index, one in enumerate(frames) if isinstance(one, dict))
            self.read[id(frames)] = self.known.setdefault(stack, stack)
        return self.read[id(frames)]


@functools.cache
def owner_of(stack):
    """(function, line) that asked: the innermost of the program or of a library, "train.main", "train.py:33"."""
    for file, line, function in stack:
        if not PASSED_OVER.search(file):
            base = os.path.basename(file)
            return f"{os.path.splitext(base)[0]}.{function}", f"{base}:{line}"
    return UNKNOWN if not stack else (stack[0][2] or "PyTorch", "")


@functools.cache
def called_by(stack):
    """The innermost line of the program itself, "train.py:33", if a library asked; else ""."""
    asked = False
    for file, line, _ in stack:
        if PASSED_OVER.search(file):
            continue
        if not INSTALLED.search(file):
            return f"{os.path.basename(file)}:{line}" if asked else ""
        asked = True
    return ""


@functools.cache
def phase_of(stack):
    """The phase of a step, as far as the stack shows it."""
    files = [file.replace("\\", "/") for file, _, _ in stack]
    if any("/torch/optim/" in file for file in files):
        return "optimizer"
    if any("/torch/autograd/graph.py" in file or "/torch/_tensor.py" in file for file in files):
        return "backward"
    if any("/torch/nn/modules/module.py" in file for file in files):
        return "forward"
    return "idle"


class Snapshot:
    """A snapshot of one device. `blocks`: [(address, bytes, stack)] in use."""

    def __init__(self, content, path, device=None):
        if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
            raise ValueError("it has no list `segments`")
        self.stacks = Stacks()
        reserved, segments = {}, []
        for index, one in enumerate(content["segments"]):
            place = f"segments[{index}]"
            at = integer(one.get("device", 0), f"{place}.device", MOST_DEVICES)
            reserved[at] = reserved.get(at, 0) + integer(one.get("total_size", 0), f"{place}.total_size")
            segments.append((at, place, one))
        traces = content.get("device_traces") or []
        self.path, self.devices = text(path), sorted(reserved)
        fullest = max(self.devices, key=lambda one: (reserved[one], -one), default=0)
        self.device = device if device is not None else fullest
        self.trace = traces[self.device] if self.device < len(traces) else []
        self.stacks.count(len(self.trace))
        self.reserved = reserved.get(self.device, 0)
        self.blocks, self.waiting, self.unused = [], 0, 0
        segments = [(place, segment) for at, place, segment in segments if at == self.device]
        self.stacks.count(sum(len(segment.get("blocks") or ()) for _, segment in segments))
        for place, segment in segments:
            self._read(segment, place)
        integer(self.reserved + self.in_use + self.waiting + self.unused, "the sum of sizes")

    def _read(self, segment, place):
        address = integer(segment.get("address", 0), f"{place}.address", 1 << 64)
        for index, block in enumerate(segment.get("blocks") or ()):
            where = f"{place}.blocks[{index}]"
            size, state = integer(block.get("size", 0), f"{where}.size"), block.get("state")
            if state == IN_USE:
                begin = integer(block.get("address", address), f"{where}.address", 1 << 64)
                self.blocks.append((begin, size, self.stacks.of(self._stack(block), where)))
            elif state in WAITING:
                self.waiting += size
            else:
                self.unused += size
            address += size

    @staticmethod
    def _stack(block):
        """Snapshots of earlier releases have a history of each block."""
        history = block.get("history") or [{}]
        return block.get("frames") or history[0].get("frames")

    @property
    def in_use(self):
        return sum(size for _, size, _ in self.blocks)

    def by(self, key):
        """{key(stack): (bytes, blocks)} of what is in use."""
        out = collections.defaultdict(lambda: [0, 0])
        for _, size, stack in self.blocks:
            row = out[key(stack)]
            row[0] += size
            row[1] += 1
        return {name: tuple(row) for name, row in out.items()}

    def events(self):
        """(address, bytes, stack) of the history; bytes below 0 are freed."""
        for index, entry in enumerate(self.trace):
            action, where = entry.get("action"), f"device_traces[{self.device}][{index}]"
            if action not in ("alloc", "free_requested"):
                continue
            size = -(-integer(entry.get("size", 0), f"{where}.size") // GRAIN) * GRAIN
            address = integer(entry.get("addr", 0), f"{where}.addr", 1 << 64)
            if action == "alloc":
                yield address, size, self.stacks.of(entry.get("frames"), where)
            else:
                yield address, -size, ()

    @functools.cached_property
    def replayed(self):
        """(blocks alive when the history begins, events): [(bytes, stack)], [(change in bytes, stack of the block)]."""
        # Backwards: what is freed was alive, and what is allocated was not. A freed block's stack is its allocation's.
        # The history has the sizes that were asked for; a block that is still in use shows what it got.
        stacks, made, before, events = [], {}, {address: (size, stack) for address, size, stack in self.blocks}, []
        for address, size, stack in reversed(list(self.events())):
            if size < 0:
                before[address] = (-size, ())
            else:
                size = before.pop(address, (size, ()))[0]
            events.append((address, size, stack))
        events.reverse()
        for address, size, stack in events:
            if size > 0:
                made[address] = stack
                stacks.append((size, stack))
            else:
                known = made.pop(address, None)
                stacks.append((size, known if known is not None else before.get(address, (0, ()))[1]))
        return list(before.values()), stacks


def row(name, size, blocks, **more):
    return {"holder": name, "bytes": size, "blocks": blocks} | more


@functools.cache
def owner_text(stack):
    function, _ = owner_of(stack)
    behind = called_by(stack)
    return f"{function} (from {behind})" if behind else function


def summary(snapshot):
    """What one snapshot holds."""
    owners = snapshot.by(owner_text)
    known = sum(size for _, size, stack in snapshot.blocks if stack)
    initial, events = snapshot.replayed
    peak, at = peak_of(initial, events)
    held = collections.Counter()
    for size, stack in [*initial, *events[:at]]:
        held[owner_text(stack) if stack else UNKNOWN[0]] += size
    return {
        "path": snapshot.path, "device": snapshot.device, "devices": snapshot.devices,
        "in_use_bytes": snapshot.in_use, "reserved_bytes": snapshot.reserved, "unused_bytes": snapshot.unused,
        "waiting_bytes": snapshot.waiting, "blocks": len(snapshot.blocks), "with_stack_bytes": known,
        "history_events": len(events), "peak_bytes": max(peak, snapshot.in_use),
        "holders": sorted((row(name, *sizes) for name, sizes in owners.items()), key=largest)[:MOST_ROWS],
        "peak_holders": sorted((row(*one, 0) for one in held.items() if one[1] > 0), key=largest)[:MOST_ROWS],
        "stacks": stack_rows(snapshot), "holders_total": len(owners), "stacks_total": len(snapshot.by(lambda stack: stack)),
    }


def largest(one):
    return (-abs(one["bytes"]), one["holder"])


def peak_of(initial, events):
    """(most bytes in use in the recorded history, number of events before that moment)"""
    live = peak = sum(size for size, _ in initial)
    at = 0
    for number, (change, _) in enumerate(events, 1):
        live += change
        if live > peak:
            peak, at = live, number
    return peak, at


def stack_rows(snapshot):
    rows = sorted(snapshot.by(lambda stack: stack).items(), key=lambda one: (-one[1][0], one[0]))
    return [row(owner_text(stack), *sizes, frames=frame_texts(stack)) for stack, sizes in rows[:MOST_ROWS]]


def frame_texts(stack):
    return [f"{file}:{line} {function}" for file, line, function in stack[:MOST_FRAMES]]


def differences(before, after):
    """What `after` holds more (bytes above 0) and less than `before`: by owner and by stack."""
    out = {}
    for name, key in (("holders", owner_text), ("stacks", lambda stack: stack)):
        old, new = before.by(key), after.by(key)
        rows = []
        for one in old.keys() | new.keys():
            size, blocks = (new.get(one, (0, 0))[i] - old.get(one, (0, 0))[i] for i in (0, 1))
            if not size and not blocks:
                continue
            if name == "holders":
                rows.append(row(one, size, blocks))
            else:
                rows.append(row(owner_text(one), size, blocks, frames=frame_texts(one)))
        out[f"{name}_total"] = len(rows)
        out[name] = sorted(rows, key=lambda one: (*largest(one), str(one.get("frames"))))[:MOST_ROWS]
    return out | {"in_use_bytes": after.in_use - before.in_use, "reserved_bytes": after.reserved - before.reserved}


def timeline(snapshot):
    """The history as a timeline for `fp8lab report`: at most MOST_EVENTS events, the last ones."""
    initial, events = snapshot.replayed
    cut = max(0, len(events) - MOST_EVENTS)
    held = collections.Counter()
    for size, stack in [*initial, *events[:cut]]:
        held[stack] += size
    changes = [(size, stack, "setup") for stack, size in held.items() if size > 0]
    changes += [(size, stack, phase_of(stack)) for size, stack in events[cut:]]
    holders, rows, live = {}, [], 0
    for size, stack, phase in changes:
        function, line = owner_of(stack)
        live += size
        number = holders.setdefault((function, line), len(holders))
        rows.append([size, abs(size), live, number, phase, 0])
    named = [{"kind": "tensor", "owner": function, "what": line} for function, line in holders]
    marks = [{"name": "end_of_step", "live_bytes": live, "retained_bytes": 0, "event": len(rows)}] if rows else []
    return {"schema": TIMELINE, "holders": named, "marks": marks, "events": rows}


def document(paths):
    snapshots, summaries, timelines = [], [], []
    for path in paths:
        content = plain_pickle.load(path)
        try:
            snapshots.append(Snapshot(content, path, snapshots[0].device if snapshots else None))
            summaries.append(summary(snapshots[-1]))
            timelines.append(timeline(snapshots[-1]))
        except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
            raise ValueError(f"{path}: not a snapshot: {error}") from error
    out = {"schema": SCHEMA, "snapshots": summaries}
    if len(snapshots) == 2:
        out["difference"] = differences(*snapshots)
    return out | {"timelines": timelines}


def main(paths):
    if not 1 <= len(paths) <= 2:
        sys.exit("give one snapshot or two")
    try:
        print(json.dumps(document(paths)))
    except ValueError as error:
        sys.exit(text(str(error)))


if __name__ == "__main__":
    main(sys.argv[1:])
