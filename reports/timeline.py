"""Memory timelines: the bytes of every holder after every event, grouped into the bands of a figure."""

import dataclasses
import functools
import itertools
import pathlib
import re
import zlib
from typing import Any, NamedTuple

from documents import Malformed, described, parsed, read_text
from shape import COUNT, INTEGER, LIST, TEXT, Shape, members

SCHEMA = "fp8lab.timeline/1"
# The kinds of holders in the ledger's order; True if the schedule lets their bytes outlive backward
# (lib/memory/holder.h).
KINDS = {
    "parameter": True,
    "gradient": True,
    "optimizer state": True,
    "recipe state": True,
    "input": True,
    "output": True,
    "unsharded": False,
    "context": False,
    "saved slot": False,
    "in flight": False,
    "workspace": False,
}
_HOLDER = members({"kind": TEXT, "owner": TEXT, "what": TEXT})
_MARK = members({"name": TEXT, "live_bytes": INTEGER, "retained_bytes": INTEGER, "event": COUNT})
_SHAPE = Shape(members({"holders": {**LIST, "items": _HOLDER}, "marks": {**LIST, "items": _MARK}, "events": LIST}))
_EVENT = (int, int, int, int, str, int)


# Labels of the two bands that share what has no band of its own.
OTHER_PERSISTENT, OTHER_TEMPORARY = "other persistent", "other temporary"


class TimelineError(Exception):
    """A timeline cannot be used; the message names the record that is wrong."""


@dataclasses.dataclass(frozen=True)
class Holder:
    kind: str
    owner: str
    what: str

    @property
    def name(self) -> str:
        """`context of layers[2].attention: q`"""
        return self.kind + (f" of {self.owner}" if self.owner else "") + (f": {self.what}" if self.what else "")

    @functools.cached_property
    def group(self) -> str:
        """The name without `what` and without indices, common to all layers: `context of layers[*].attention`."""
        return self.kind + (f" of {folded(self.owner)}" if self.owner else "")

    @property
    def outlives_backward(self) -> bool:
        return KINDS.get(self.kind, False)


@dataclasses.dataclass(frozen=True)
class Mark:
    name: str
    live_bytes: int
    retained_bytes: int
    event: int  # number of the next event


class Event(NamedTuple):
    delta: int
    size: int
    live: int
    holder: int
    phase: str
    step: int
    source: int | None  # the previous holder, if the event moves bytes between holders


@dataclasses.dataclass
class Timeline:
    holders: list[Holder]
    marks: list[Mark]
    events: list[Event]

    @property
    def peak(self) -> int:
        """The index of the first event with the most bytes alive."""
        return max(range(len(self.events)), key=lambda i: self.events[i].live, default=0)

    def retained_at(self) -> Mark | None:
        """The last mark at the end of backward."""
        return next((mark for mark in reversed(self.marks) if mark.name == "end_of_backward"), None)

    def changes(self, index: int) -> list[tuple[int, int]]:
        """The changes of event `index` as (holder, bytes); bytes are negative if a holder loses them."""
        event = self.events[index]
        if event.delta:
            return [(event.holder, event.delta)]
        return [(event.holder, event.size)] + ([(event.source, -event.size)] if event.source is not None else [])


def folded(name: str) -> str:
    """layers[12].fc1 -> layers[*].fc1"""
    return re.sub(r"\[\d+\]", "[*]", name)


def read(path: pathlib.Path) -> Timeline:
    """Reads a timeline. Raises TimelineError, which names the record that is wrong."""
    try:
        document = parsed(read_text(path))
    except (OSError, EOFError, zlib.error) as error:
        raise TimelineError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except Malformed as error:
        raise TimelineError(f"is cut off or broken: {error.located}") from error
    except UnicodeDecodeError as error:
        raise TimelineError(f"is cut off or broken: {error}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise TimelineError(f"its schema is `{schema}`, and this version draws {SCHEMA}")
    if wrong := _SHAPE.fault(document):
        raise TimelineError(wrong)
    return _from(document)


def _from(document: dict[str, Any]) -> Timeline:
    holders = [Holder(h["kind"], h["owner"], h["what"]) for h in document["holders"]]
    marks = [Mark(m["name"], *(int(m[key]) for key in ("live_bytes", "retained_bytes", "event"))) for m in document["marks"]]
    events, live = [], 0
    for number, entry in enumerate(document["events"]):
        if type(entry) is not list or tuple(map(type, entry)) not in (_EVENT, (*_EVENT, int)):
            raise TimelineError(
                f"`events[{number}]` must be six or seven values, as `fp8lab run` writes them, but is {described(entry)}"
            )
        delta, size, alive, holder, phase, step, *source = entry
        live += delta
        if alive != live or alive < 0 or size < 0 or not all(0 <= one < len(holders) for one in (holder, *source)):
            raise TimelineError(f"event {number} does not add up")
        if delta == 0 and not source:
            raise TimelineError(f"event {number} does not say from whom its bytes moved; it was written by an older fp8lab")
        events.append(Event(delta, size, alive, holder, phase, step, source[0] if source else None))
    if not events:
        raise TimelineError("has no events")
    if any(mark.event > len(events) for mark in marks):
        raise TimelineError(f"has a mark behind the last of its {len(events)} events")
    return Timeline(holders, marks, events)


@dataclasses.dataclass(frozen=True)
class Band:
    label: str
    outlives_backward: bool


def bands(timelines: list[Timeline], most: int) -> list[Band]:
    """The bands of a figure, in the ledger's order. The `most` groups of holders with the most bytes at a peak or a
    mark have a band each; the others share two bands, one for bytes that outlive backward and one for bytes that do
    not."""
    weight: dict[str, int] = {}
    holder_of: dict[str, Holder] = {}
    for timeline in timelines:
        moments = {timeline.peak} | {mark.event - 1 for mark in timeline.marks if mark.event > 0}
        held: dict[str, int] = {}
        for index in range(len(timeline.events)):
            for holder, change in timeline.changes(index):
                group = timeline.holders[holder].group
                held[group] = held.get(group, 0) + change
                holder_of.setdefault(group, timeline.holders[holder])
            if index in moments:
                for group, size in held.items():
                    weight[group] = max(weight.get(group, 0), size)
    chosen = sorted((g for g in weight if weight[g] > 0), key=lambda g: -weight[g])[:most]
    order = list(KINDS)
    chosen.sort(key=lambda g: (order.index(holder_of[g].kind) if holder_of[g].kind in order else len(order), -weight[g]))
    out = [Band(group, holder_of[group].outlives_backward) for group in chosen]
    for outlives in (True, False):
        if any(h.outlives_backward == outlives and g not in chosen and weight.get(g, 0) > 0 for g, h in holder_of.items()):
            rest = Band(OTHER_PERSISTENT if outlives else OTHER_TEMPORARY, outlives)
            at = sum(band.outlives_backward for band in out) if outlives else len(out)
            out.insert(at, rest)
    return out


@dataclasses.dataclass
class Curve:
    """Bytes by band at chosen moments. `x` counts events along the axis that all arms share."""

    x: list[float]
    by_band: list[list[int]]
    live: list[int]
    marks: list[tuple[str, float, Mark]]
    peak: tuple[float, int]


@dataclasses.dataclass(frozen=True)
class Segment:
    """An uninterrupted sequence of events of one phase and step; `visit` counts these sequences."""

    phase: str
    step: int
    visit: int
    first: int
    last: int  # one past the last event

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.phase, self.step, self.visit)


def segments(timeline: Timeline) -> list[Segment]:
    out: list[Segment] = []
    visits: dict[tuple[str, int], int] = {}
    first = 0
    for (phase, step), stretch in itertools.groupby(timeline.events, key=lambda event: (event.phase, event.step)):
        last = first + sum(1 for _ in stretch)
        visit = visits.get((phase, step), 0)
        visits[phase, step] = visit + 1
        out.append(Segment(phase, step, visit, first, last))
        first = last
    return out


@dataclasses.dataclass
class Axis:
    """The x axis that arms share. Each segment is as wide as in the arm with the most events, so that arms can be
    overlaid."""

    spans: dict[tuple[str, int, int], tuple[float, float]]

    @property
    def end(self) -> float:
        return max((end for _, end in self.spans.values()), default=0.0)


def shared_axis(timelines: list[Timeline]) -> Axis:
    widths: dict[tuple[str, int, int], int] = {}
    order: list[tuple[str, int, int]] = []
    for timeline in timelines:
        at = 0
        for segment in segments(timeline):
            if segment.key in widths:
                at = order.index(segment.key) + 1
            else:
                order.insert(at, segment.key)
                at += 1
            widths[segment.key] = max(widths.get(segment.key, 0), segment.last - segment.first)
    spans, start = {}, 0.0
    for key in order:
        spans[key] = (start, start + widths[key])
        start += widths[key]
    return Axis(spans)


def curve(timeline: Timeline, chosen: list[Band], axis: Axis, points: int) -> Curve:
    """The curve of a timeline at about `points` moments: the peak, the marks, and the maximum of each stretch of
    events."""
    position = {band.label: i for i, band in enumerate(chosen)}
    rest = {band.outlives_backward: i for i, band in enumerate(chosen) if band.label in (OTHER_PERSISTENT, OTHER_TEMPORARY)}
    row = [position.get(h.group, rest.get(h.outlives_backward)) for h in timeline.holders]
    xs = _positions(timeline, axis)
    keep = _moments(timeline, points)
    held, out = [0] * len(chosen), Curve(
        [], [[] for _ in chosen], [], [], (xs[timeline.peak], timeline.events[timeline.peak].live)
    )
    for index, event in enumerate(timeline.events):
        for holder, change in timeline.changes(index):
            band = row[holder]
            if band is not None:
                held[band] += change
        if index in keep:
            out.x.append(xs[index])
            out.live.append(event.live)
            for values, size in zip(out.by_band, held):
                values.append(size)
    out.marks = [(mark.name, xs[min(mark.event, len(xs)) - 1], mark) for mark in timeline.marks if mark.event > 0]
    return out


def _positions(timeline: Timeline, axis: Axis) -> list[float]:
    out: list[float] = []
    for segment in segments(timeline):
        start, end = axis.spans[segment.key]
        count = segment.last - segment.first
        out += [start + (end - start) * (i + 1) / count for i in range(count)]
    return out


def _moments(timeline: Timeline, points: int) -> set[int]:
    count = len(timeline.events)
    keep = {0, count - 1} | {mark.event - 1 for mark in timeline.marks if mark.event > 0}
    for segment in segments(timeline):
        keep |= {segment.first, segment.last - 1}
    stretch = max(1, count // points)
    for start in range(0, count, stretch):
        # The global peak is among these maxima.
        keep.add(max(range(start, min(start + stretch, count)), key=lambda i: timeline.events[i].live))
    return keep
