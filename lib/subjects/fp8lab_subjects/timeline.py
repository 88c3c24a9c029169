"""The memory timeline of a step, in the form of the runtime's own (lib/harness/measure/timeline.h), from the history of
the allocator: bytes by holder after every event. A block has the holder that claims it at a mark; blocks that live at no
mark are temporaries, and are called after the function that asked for them."""

import json
import re

from . import allocator_history

SCHEMA = "fp8lab.timeline/1"
PHASES = ("idle", "forward", "backward", "optimizer")


class Block:
    def __init__(self, size, stack, begin):
        self.size, self.stack, self.begin = size, stack, begin  # the event that allocated it; -1: before all events
        self.claim = None  # (kind, owner)


def holder_name(kind, owner):
    return f"{kind} of {owner}" if owner else kind


def folded(name):
    """layers[12].fc1 -> layers[*].fc1"""
    return re.sub(r"\[\d+\]", "[*]", name)


class Timeline:
    """The blocks of a recording, each with its holder, and what is alive after every event."""

    def __init__(self, recording, step):
        self.step, self.marks = step, recording.marks
        alive = {address: Block(size, stack, -1) for address, (size, stack) in recording.initial.items()}
        self.events = [(block, block.size) for block in alive.values()]
        self.first = len(self.events)
        by_number = {}
        for _, number, claims, rest in self.marks:
            by_number.setdefault(number, []).append((claims, rest))
        self._claim(alive, by_number.pop(0, []))
        number = 0
        for address, change, stack in recording.events():
            if change > 0:
                block = alive[address] = Block(change, stack, number)
                self.events.append((block, change))
            elif address in alive:
                block = alive.pop(address)
                self.events.append((block, -block.size))
            number += 1
            self._claim(alive, by_number.pop(number, []))
        self.count = number

    @staticmethod
    def _claim(alive, claims_of_marks):
        for claims, rest in claims_of_marks:
            for address, (kind, owner) in claims.items():
                block = alive.get(address)
                if block is not None and block.claim is None:
                    block.claim = (kind.replace("_", " "), owner)
            for block in alive.values() if rest else ():
                if block.claim is None and block.begin >= 0:
                    block.claim = (rest, allocator_history.asked_by(block.stack)[0])

    def holder(self, block):
        """(kind, owner, what) of a block."""
        asked, line = allocator_history.asked_by(block.stack)
        what = f"line {line}" if line else ""
        if block.claim is not None:
            return (*block.claim, what)
        if asked or block.begin >= 0:
            return "workspace", asked or "autograd", what
        return "unexplained", "", ""

    def _live(self):
        live = 0
        for block, change in self.events:
            live += change
            yield live

    @property
    def peak(self):
        return max(self._live(), default=0)

    def by_holder_at(self, index):
        """Bytes alive after event `index` by holder, indices folded, largest first."""
        held = {}
        for block, change in self.events[: index + 1]:
            kind, owner, _ = self.holder(block)
            name = holder_name(kind, folded(owner))
            held[name] = held.get(name, 0) + change
        return sorted(((name, size) for name, size in held.items() if size), key=lambda one: (-one[1], one[0]))

    def peak_by_holder(self):
        live = list(self._live())
        return self.by_holder_at(live.index(max(live))) if live else []

    def by_kind_at(self, name):
        """Bytes alive by kind at the last mark of this name."""
        number = next((number for mark, number, *_ in reversed(self.marks) if mark == name), None)
        held = {}
        for block, change in self.events[: self.first + number] if number is not None else ():
            kind = self.holder(block)[0]
            held[kind] = held.get(kind, 0) + change
        return {kind.replace(" ", "_"): size for kind, size in held.items() if size}

    def document(self, retained):
        """`retained`: bytes that only the loss's graph keeps alive when backward has ended."""
        holders, rows, live = {}, [], list(self._live())
        phase, marks = "setup", []
        changes = sorted(((self.first + number, name) for name, number, *_ in self.marks), key=lambda change: change[0])
        for index, (block, change) in enumerate(self.events):
            while changes and changes[0][0] <= index:
                at, name = changes.pop(0)
                phase = name if name in PHASES else phase
                self._add_mark(marks, name, at, live, retained)
            number = holders.setdefault(self.holder(block), len(holders))
            rows.append([change, abs(change), live[index], number, phase, self.step])
        for at, name in changes:
            self._add_mark(marks, name, at, live, retained)
        named = [{"kind": kind, "owner": owner, "what": what} for kind, owner, what in holders]
        text = json.dumps({"schema": SCHEMA, "holders": named, "marks": marks, "events": rows}, separators=(",", ":"))
        return text + "\n"

    @staticmethod
    def _add_mark(marks, name, at, live, retained):
        if name not in PHASES:
            kept = retained if name == "end_of_backward" else 0
            marks.append({"name": name, "live_bytes": live[at - 1] if at else 0, "retained_bytes": kept, "event": at})
