"""Collectives of each step: kinds, bytes and types, when PyTorch dispatches them."""

import collections

from ..traffic import Collectives, kind_of, moved

KINDS = ("all_gather", "reduce_scatter", "all_reduce")  # that metrics name


class Wire:
    name = "traffic"

    def __init__(self, session):
        self.session = session
        self.step = collections.Counter()  # (kind, bytes, type) -> times, in the step that runs
        self.last = None
        self.waited = self.last_waited = 0.0

    def observe(self, function, args, kwargs, out, seconds):
        kind = kind_of(function)
        if kind is None:
            return
        self.session.collective = kind
        self.step[(kind, *Collectives._size(function, kind, args, out, moved((args, kwargs))))] += 1
        self.waited += seconds

    def step_ends(self):
        self.last, self.step = self.step, collections.Counter()
        self.last_waited, self.waited = self.waited, 0.0

    def result(self):
        alone = self.session.world() == 1
        why = "one process" if alone else None if self.last is not None else "no step has ended"

        def of(kind):
            return None if why else sum(size * times for (name, size, _), times in self.last.items() if name == kind)

        metrics = {f"traffic.{kind}_bytes": (of(kind), "B", why) for kind in KINDS}
        metrics["traffic.collectives"] = (None if why else sum(self.last.values()), "1", why)
        calls = [] if why else sorted(self.last.items())
        return metrics, {}, [f"{times} x {kind} of {size} B in {dtype}" for (kind, size, dtype), times in calls]

    def by_kind_and_type(self):
        """[(kind, type, times, bytes)] of the last step, the largest first."""
        out = {}
        for (kind, size, dtype), times in (self.last or {}).items():
            before = out.get((kind, dtype), (0, 0))
            out[kind, dtype] = (before[0] + times, before[1] + size * times)
        return sorted(((*key, *value) for key, value in out.items()), key=lambda one: -one[3])
