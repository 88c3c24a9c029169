"""Memory of a rank: alive at the ends of phases, peaks by phase, what the graph retains, and who holds it."""

from . import fsdp_private
from .holders import Holders, claim_contexts
from .ledger import GpuLedger, HostLedger
from .sharding import local
from .training import Instrument

KINDS = (
    "parameter", "gradient", "optimizer_state", "recipe_state", "input", "output", "unsharded", "context", "unexplained",
)


class MemoryInstrument(Instrument):
    def __init__(self, device):
        self.ledger = HostLedger() if device.type == "cpu" else GpuLedger()
        self.ledger.__enter__()
        self.peaks, self.current, self.figures, self.kinds, self.planted = {}, "setup", {}, {}, None
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

    def built(self, run):
        if run.cell.planted:
            import torch

            self.planted = torch.zeros(1, dtype=torch.uint8, device=run.device)

    def mark(self, run, name, last):
        self.figures[f"memory.{name}_bytes"] = self.ledger.allocated()
        if name == "end_of_backward" and last:
            self._end_phase()
            self._by_holder(run)
        if name == "end_of_step" and last:
            self.figures["memory.weight_bytes"] = self._weight_bytes(run)

    def _claims(self, run):
        holders = Holders()
        for name, parameter in run.named_parameters():
            holders.claim_inside(local(parameter.detach()), "parameter", name)
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
        holders.release()
        before = self.ledger.allocated()
        self.kinds["unexplained"] = max(0, before - sum(self.kinds.values()))
        # Values stay alive, so that the difference is what the graph alone held.
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

    def close(self):
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
        run.notes.append(f"memory is counted by {self.ledger.source}")
        return metrics
