"""Time: of phases of a step, and of the host before a sharded layer's own work."""

import statistics
import time

from .training import Instrument

MOST_SAMPLES = 64
PLANTED_SHARE = 0.05
NEEDS_TWO_STEPS = "needs two steps: the first one warms up"


def spaced(values, most=MOST_SAMPLES):
    """At most `most` of the values, ascending, at evenly spaced places."""
    values = sorted(values)
    if len(values) <= most:
        return values
    return [values[i * (len(values) - 1) // (most - 1)] for i in range(most)]


class TimeInstrument(Instrument):
    """Wall time of forward, backward and the optimizer, in ms, of every step but the first."""

    PARTS = ("forward", "backward", "optimizer")

    def __init__(self):
        self.samples = {part: [] for part in self.PARTS}
        self.begun = None
        self.of_step = dict.fromkeys(self.PARTS, 0.0)
        self.steps = []

    def phase(self, run, name):
        run.synchronize()
        now = time.perf_counter()
        if self.begun and self.begun[0] in self.of_step:
            self.of_step[self.begun[0]] += 1e3 * (now - self.begun[1])
            if run.cell.planted and self.begun[0] == "optimizer":
                now = self._plant(now)
        self.begun = (name, now)

    def _plant(self, begin):
        """Spends PLANTED_SHARE of the step's time once more, as control cells ask. Returns the time after it."""
        end = begin + PLANTED_SHARE * sum(self.of_step.values()) / 1e3
        now = begin
        while now < end:
            now = time.perf_counter()
        self.of_step["optimizer"] += 1e3 * (now - begin)
        return now

    def mark(self, run, name, last):
        if name == "end_of_step":
            self.steps.append(self.of_step)
            self.of_step = dict.fromkeys(self.PARTS, 0.0)

    def results(self, run):
        metrics, self.kept = {}, {}
        for name in ("step", *self.PARTS):
            values = [sum(step.values()) if name == "step" else step[name] for step in self.steps[1:]]
            metric = f"time.{name}_ms"
            if not values:
                metrics[metric] = (None, "ms", NEEDS_TWO_STEPS)
                continue
            metrics[metric] = (statistics.median(values), "ms", None)
            self.kept[metric] = spaced(values)
        return metrics


class HostInstrument(Instrument):
    """Host time from FSDP's pre-forward hook to the layer's own code, less that of two hooks with nothing between.

    Hooks are called in order: the first of this instrument, FSDP's, the second of this instrument.
    """

    def __init__(self):
        self.samples, self.handles, self.begun, self.warm = [], [], 0, False

    def built(self, run):
        if not run.cell.sharded:
            return
        for layer in run.model.layers:
            self.handles.append(layer.register_forward_pre_hook(self._enter, prepend=True))
            self.handles.append(layer.register_forward_pre_hook(self._leave))
        self.baseline = self._empty_hooks(run)

    def _enter(self, *_):
        self.begun = time.perf_counter_ns()

    def _leave(self, *_):
        if self.warm:
            self.samples.append(time.perf_counter_ns() - self.begun)

    def _empty_hooks(self, run, times=200):
        import torch

        module = torch.nn.Identity()
        spans, begun = [], [0]
        module.register_forward_pre_hook(lambda *_: begun.__setitem__(0, time.perf_counter_ns()))
        module.register_forward_pre_hook(lambda *_: spans.append(time.perf_counter_ns() - begun[0]))
        for _ in range(times):
            module(None)
        return statistics.median(spans)

    def mark(self, run, name, last):
        if name == "end_of_step":
            self.warm = True

    def close(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def results(self, run):
        why = "nothing is sharded" if not run.cell.sharded else NEEDS_TWO_STEPS if not self.samples else None
        spans = [max(0, span - self.baseline) for span in self.samples]
        self.kept = {"host.pre_forward_ns": spaced(spans)} if spans else {}
        if spans and run.device.type == "cpu":
            run.notes.append("host.pre_forward_ns contains the wait for the all-gather, which gloo does on the host")
        return {
            "host.pre_forward_ns": (statistics.median(spans) if spans else None, "ns", why),
            "host.pre_forward_allocations": (None, "1", "allocations of Python are not counted"),
            "host.pre_forward_quantizer_copies": (None, "1", "a library's quantizers are its own"),
        }
