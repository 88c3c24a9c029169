"""Time: of phases of a step, and of the host before a sharded layer's own work; there, what Python does, too."""

import gc
import statistics
import sys
import time

from .training import Instrument

MOST_SAMPLES = 64
PLANTED_SHARE = 0.05
NEEDS_TWO_STEPS = "needs two steps: the first one warms up"
STEPS_TO_COUNT = 3
NEEDS_THREE_STEPS = "needs three steps: one warms up, one is timed, and in the last one Python's work is counted"


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


class PythonCounter:
    """What Python does between start() and stop(): functions called, objects that were made and are still there, and
    copies of quantizers. Objects are blocks of Python's own allocator."""

    def __init__(self, quantizers):
        self.quantizers = quantizers  # how names of quantizers' classes end
        self.calls = self.copies = self.blocks = 0

    def start(self):
        self.collects = gc.isenabled()
        gc.disable()  # a collection would free objects of others
        self.calls = self.copies = 0
        self.blocks = sys.getallocatedblocks()
        sys.setprofile(self._called)

    def stop(self):
        """(calls, objects, copies)"""
        sys.setprofile(None)
        made = sys.getallocatedblocks() - self.blocks
        if self.collects:
            gc.enable()
        return self.calls, made, self.copies

    def _called(self, frame, event, _):
        if event != "call":
            return
        self.calls += 1
        if frame.f_code.co_name == "copy" and self.quantizers:
            self.copies += type(frame.f_locals.get("self")).__name__.endswith(self.quantizers)


class HostInstrument(Instrument):
    """From FSDP's pre-forward hook to the layer's own code: host time, and in the last of at least three steps what
    Python does; less the same of two hooks with nothing between.

    Hooks are called in order: the first of this instrument, FSDP's, the second of this instrument.
    """

    COUNTS = ("host.pre_forward_python_calls", "host.pre_forward_python_objects", "host.pre_forward_quantizer_copies")

    def __init__(self):
        self.samples, self.handles, self.begun, self.warm, self.counting = [], [], 0, False, False
        self.counts = []

    def built(self, run):
        if not run.cell.sharded:
            return
        self.counter = PythonCounter(run.subject.quantizers)
        self._empty_hooks()
        for layer in run.model.layers:
            self._hook(layer)

    def _hook(self, module):
        self.handles.append(module.register_forward_pre_hook(self._enter, prepend=True))
        self.handles.append(module.register_forward_pre_hook(self._leave))

    def _enter(self, *_):
        if self.counting:
            self.counter.start()
        else:
            self.begun = time.perf_counter_ns()

    def _leave(self, *_):
        if self.counting:
            self.counts.append(self.counter.stop())
        elif self.warm:
            self.samples.append(time.perf_counter_ns() - self.begun)

    def _empty_hooks(self, times=200):
        import torch

        module = torch.nn.Identity()
        self._hook(module)
        self.warm = True
        for self.counting in (False, True):
            for _ in range(times):
                module(None)
        self.baseline, self.counts_baseline = statistics.median(self.samples), self._median_counts()
        self.warm = self.counting = False
        self.samples, self.counts = [], []
        self.close()

    def _median_counts(self):
        return [statistics.median(one) for one in zip(*self.counts)]

    def mark(self, run, name, last):
        if name == "end_of_step":
            self.warm = True
            self.counting = run.cell["training.steps"] >= STEPS_TO_COUNT and run.step + 2 == run.cell["training.steps"]

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
            "host.pre_forward_allocations": (None, "1", "allocations outside of Python are not counted"),
            **self._counts(run, why),
        }

    def _counts(self, run, why):
        why = why or (NEEDS_THREE_STEPS if not self.counts else None)
        values = self._median_counts() if self.counts else [None] * len(self.COUNTS)
        out = {}
        for name, value, nothing in zip(self.COUNTS, values, getattr(self, "counts_baseline", values)):
            out[name] = (None if value is None else max(0, value - nothing), "1", why)
        if not run.subject.quantizers:
            out[self.COUNTS[-1]] = (None, "1", why or "the library has no quantizers that are copied")
        return out
