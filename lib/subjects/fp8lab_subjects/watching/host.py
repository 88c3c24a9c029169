"""Host time before layers: from entering a module to its own code, when hooks or a wrapper work in between."""

import statistics
import time

from ..clock import spaced

NOTHING_BEFORE = "no module has hooks before its forward, and nothing is wrapped"
MOST = 4096  # samples of a module
# Wrappers whose forward works before it calls the module inside.
WRAPPERS = ("FullyShardedDataParallel", "DistributedDataParallel")


class Host:
    name = "host"

    def __init__(self, session):
        self.session = session
        self.samples, self.pending, self.handles, self.hooked = {}, [], [], set()

    def enter(self, module):
        """Called by the global hook, which comes before the module's own."""
        now = time.perf_counter_ns()
        if self.pending and self.pending[-1][0] == "wrapper":
            self._sample(*self.pending.pop()[1:], now)
        if type(module).__name__ in WRAPPERS:
            self.pending.append(("wrapper", self.session.name_of(module), time.perf_counter_ns()))
        elif id(module) in self.hooked:
            self.pending.append(("hooks", self.session.name_of(module), time.perf_counter_ns()))
        elif module._forward_pre_hooks:
            self.hooked.add(id(module))
            self.handles.append(module.register_forward_pre_hook(self._own_hooks_ended))

    def _own_hooks_ended(self, module, _):
        now = time.perf_counter_ns()
        if self.pending and self.pending[-1][0] == "hooks":
            self._sample(*self.pending.pop()[1:], now)

    def _sample(self, name, begin, now):
        if self.session.step > 1:  # the first step warms up
            kept = self.samples.setdefault(name, [])
            if len(kept) < MOST:
                kept.append(now - begin)

    def step_ends(self):
        self.pending.clear()

    def close(self):
        for handle in self.handles:
            handle.remove()

    def result(self):
        every = [one for values in self.samples.values() for one in values]
        why = None
        if not every:
            why = NOTHING_BEFORE if self.session.steps_ended > 1 else "needs two steps"
        metrics = {"host.pre_forward_ns": (statistics.median(every) if every else None, "ns", why)}
        return metrics, {"samples": {"host.pre_forward_ns": spaced(every)}} if every else {}, []

    def slowest(self):
        """(module, median ns, total ns in a step) of the module that takes most."""
        steps = max(1, self.session.steps_ended - 1)
        rows = [(name, statistics.median(values), sum(values) / steps) for name, values in self.samples.items()]
        return max(rows, key=lambda one: one[2], default=None)
