"""Memory of a rank: alive at the ends of phases, peaks by phase, what the graph retains, and who holds it."""

from . import allocator_history, fsdp_private
from .holders import Holders, claim_contexts
from .ledger import GpuLedger, HostLedger
from .sharding import local
from .timeline import Timeline
from .training import Instrument

KINDS = (
    "parameter", "gradient", "optimizer_state", "recipe_state", "input", "output", "unsharded", "context", "unexplained",
)


class MemoryInstrument(Instrument):
    def __init__(self, device):
        self.ledger = HostLedger() if device.type == "cpu" else GpuLedger()
        self.ledger.__enter__()
        self.peaks, self.current, self.figures, self.kinds, self.planted = {}, "setup", {}, {}, None
        self.has_history = device.type != "cpu" and allocator_history.available()
        self.recording = self.timeline = None
        self.hooks = []
        self.open = True

    def _end_phase(self):
        # Inputs and initial values are made by the worker, whose temporaries are no part of the library's peak.
        of_worker = self.current in ("setup", "idle")
        bytes_now = self.ledger.allocated() if of_worker else self.ledger.peak()
        self.peaks[self.current] = max(self.peaks.get(self.current, 0), bytes_now)
        self.ledger.reset_peak()

    def phase(self, run, name):
        self._end_phase()
        self.current = name
        if self.has_history:
            self._record(run, name)

    def _record(self, run, phase):
        """Records what the library allocates, and the events of the last step. The worker's own inputs are left out."""
        if self.recording is None and phase in ("forward", "idle"):
            (allocator_history.resume if phase == "forward" else allocator_history.pause)()
        if self.recording is None and phase == "forward" and run.step + 1 == run.cell["training.steps"]:
            self.recording = allocator_history.Recording()
            self.recording.mark("start_of_step", self._claims(run).by_address())
        if self.recording is not None:
            self.recording.mark(phase)

    def built(self, run):
        for index, layer in enumerate(run.model.layers if self.has_history else ()):
            self._mark_layer(f"layers[{index}]", layer)
        if run.cell.planted:
            import torch

            self.planted = torch.zeros(1, dtype=torch.uint8, device=run.device)

    def _mark_layer(self, name, layer):
        """Marks the beginning and end of a layer's forward, and the beginning of its backward."""

        def note(what):
            if self.recording is not None:
                self.recording.mark(f"{what} of {name}")

        def leave(_, __, output):
            note("end of forward")
            if self.recording is not None and output.requires_grad:
                output.register_hook(lambda _: note("backward"))

        self.hooks.append(layer.register_forward_pre_hook(lambda *_: note("forward")))
        self.hooks.append(layer.register_forward_hook(leave))

    def mark(self, run, name, last):
        self.figures[f"memory.{name}_bytes"] = self.ledger.allocated()
        if self.recording is not None and name != "end_of_backward":
            # Saved tensors of a layer that is recomputed cannot be looked at: that would recompute them.
            recomputed = name == "end_of_forward" and run.cell["training.checkpoint"] != "none"
            claims = self._claims(run, contexts=not recomputed).by_address()
            self.recording.mark(name, claims, "context" if recomputed else None)
        if name == "end_of_backward" and last:
            self._end_phase()
            self._by_holder(run)
        if name == "end_of_step" and last:
            self.figures["memory.weight_bytes"] = self._weight_bytes(run)

    def _claims(self, run, contexts=True):
        holders = Holders()
        for name, parameter in run.named_parameters():
            holders.claim_inside(local(parameter.detach()), "parameter", name)
        states = getattr(run.optimizer, "state", {})
        for name, parameter in run.named_parameters():
            holders.claim_inside(list(states.get(parameter, {}).values()), "optimizer_state", name)
        for name, held in getattr(run.optimizer, "__dict__", {}).items():
            holders.claim_inside(held, "optimizer_state", name)
        for name, parameter in run.named_parameters():
            if parameter.grad is not None:
                holders.claim(local(parameter.grad), "gradient", name)
        for name, tensor in fsdp_private.unsharded_tensors(run.model):
            holders.claim_inside(tensor, "unsharded", name)
        for name in ("x", "target"):
            if getattr(run, name) is not None:
                holders.claim(getattr(run, name), "input", name)
        for name in ("output", "loss"):
            if getattr(run, name) is not None:
                holders.claim(getattr(run, name).detach(), "output", name)
        for name, module in run.model.named_modules():
            held = {key: value for key, value in vars(module).items() if key not in ("_parameters", "_modules")}
            holders.claim_inside(held, "recipe_state", name or "model")
        if contexts:
            claim_contexts(holders, run.loss)
        return holders

    def _weight_bytes(self, run):
        holders = Holders()
        for name, parameter in run.named_parameters():
            holders.claim_inside(local(parameter.detach()), "parameter", name)
        return sum(holders.by_kind().values())

    def _by_holder(self, run):
        """Bytes that only the graph of the loss keeps alive are retained: they are gone once the loss is dropped."""
        holders = self._claims(run)
        self.kinds = holders.by_kind()
        if self.recording is not None:
            self.recording.mark("end_of_backward", holders.by_address())
        holders.release()
        before = self.ledger.allocated()
        self.kinds["gradient"] = self.kinds.get("gradient", 0) + fsdp_private.bucket_bytes(run.called)
        self.kinds["unexplained"] = max(0, before - sum(self.kinds.values()))
        # Values stay alive, so that the difference is what only the graph held.
        values = [one.detach() for one in (run.output, run.loss) if one is not None]
        run.output = run.loss = None
        retained = before - self.ledger.allocated()
        self.figures["memory.retained_bytes"] = retained
        holders.forget_living()
        run.retained_by_holder = holders.by_label({"context"}) if retained else []
        if retained and not run.retained_by_holder:
            run.retained_by_holder = [("contexts that cannot be inspected", retained)]
        if values:
            run.output = values[0]
        self.ledger.reset_peak()

    def trained(self, run):
        if self.recording is not None:
            self.timeline = Timeline(self.recording, run.step)
            self.recording.keep(f"{run.cell.arm}-{run.rank}")
            allocator_history.pause()
        run.peak_by_holder = self.timeline.peak_by_holder() if self.timeline else []
        run.timeline = self.timeline.document(self.figures["memory.retained_bytes"]) if self.timeline else ""

    def close(self):
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        if self.open:
            self.open = False
            self.ledger.__exit__(None, None, None)

    def results(self, run):
        self._end_phase()
        metrics = {name: (value, "B", None) for name, value in self.figures.items()}
        metrics["memory.peak_bytes"] = (max(self.peaks.values()), "B", None)
        for phase in ("setup", "forward", "optimizer"):
            metrics[f"memory.{phase}_peak_bytes"] = (self.peaks.get(phase, 0), "B", None)
        reserved = self.ledger.reserved
        why = None if reserved is not None else "PyTorch's allocator for the host reserves nothing"
        metrics["memory.reserved_peak_bytes"] = (reserved, "B", why)
        for kind in KINDS:
            metrics[f"memory.by_holder.{kind}"] = (self.kinds.get(kind, 0), "B", None)
        for kind, size in self.timeline.by_kind_at("end_of_forward").items() if self.timeline else ():
            metrics[f"memory.forward_by_holder.{kind}"] = (size, "B", None)
        run.notes.append(f"memory is counted by {self.ledger.source}")
        return metrics
