"""Memory of a watched program: alive at the ends of phases, the peak and its holders, what grows from step to step."""

import re
import time

import torch

from . import growth, owners

SHARE_OF_SEARCHES = 0.1  # share of the run's time; the first steps are always searched
ALWAYS_SEARCHED = 8
COUNTED_ON_GPU = "memory is counted by PyTorch's allocator"
COUNTED_ON_HOST = "memory is counted by the storages of tensors; a kernel's own temporaries are not seen"
RANDOM_STATE = re.compile(r"^CheckpointFunctionBackward\.fwd_\w+_states?\b")
UNSEEN = "kernels' own workspace, and tensors that no operation returned"
KINDS = (
    "parameter", "gradient", "optimizer_state", "recipe_state", "variable", "unsharded", "context", "unexplained",
)


class Memory:
    name = "memory"

    def __init__(self, session):
        self.session, self.storages = session, session.storages
        self.figures, self.kinds, self.retained, self.end = {}, {}, {}, {}
        self.ends = growth.Series()
        self.retained_since = None
        self.searching, self.searches, self.begun = 0.0, 0, time.perf_counter()
        self.truncated, self.highest, self.most_retained = False, 0, 0

    @property
    def device(self):
        return self.session.device

    def allocated(self):
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.highest = max(self.highest, torch.cuda.max_memory_allocated())
            return torch.cuda.memory_allocated()
        self.storages.refresh()
        return self.storages.account(self.device).total

    def model_found(self):
        """The first look: parameters have an owner before the first peak."""
        search = owners.Search(self.storages, self.device)
        for prefix, model in self.session.models():
            for name, parameter in model.named_parameters():
                search.claim(parameter.detach(), "parameter", owners.folded(prefix + name))

    def backward_begins(self, roots):
        self.figures["memory.end_of_forward_bytes"] = self.allocated()
        for entry in self.storages.alive(self.device).values():
            if entry.group[0] == "made in forward" and entry.step == self.session.step:
                self.storages.move(entry, "context", entry.group[1])

    def backward_ends(self, roots):
        self.figures["memory.end_of_backward_bytes"] = self.allocated()
        search = self._search(roots)
        if search is None:
            return
        self.kinds = search.by_kind()
        self.retained = {label: size for (kind, label), size in search.by_label().items() if kind == "context"}
        self.figures["memory.retained_bytes"] = sum(self.retained.values())
        if self.unintended() and self.retained_since is None:
            self.retained_since = self.session.step

    def unintended(self):
        """What autograd retains, without the states of random generators that a checkpoint keeps on purpose."""
        return {label: size for label, size in self.retained.items() if not RANDOM_STATE.search(label)}

    def step_ends(self):
        search = self._search(())
        alive = self.allocated()
        if search is None:
            self.ends.add_total(self.session.step, alive - self.kinds.get("gradient", 0))
            return
        self.end = search.by_label()
        gradients = sum(size for (kind, _), size in self.end.items() if kind == "gradient")
        self.figures["memory.end_of_step_bytes"] = alive - gradients
        self.figures["memory.weight_bytes"] = search.by_kind().get("parameter", 0)
        self.ends.add_total(self.session.step, alive - gradients)
        self.ends.add(self.session.step, {key: size for key, size in self.end.items() if key[0] != "gradient"})

    def _search(self, roots):
        """The owners of everything alive; None if searches have taken their share of the run's time."""
        begin = time.perf_counter()
        if self.session.step > ALWAYS_SEARCHED and self.searching > SHARE_OF_SEARCHES * (begin - self.begun):
            return None
        search = owners.Search(self.storages, self.device)
        owners.claim_all(search, self.session.models(), self.session.optimizers(), roots)
        self.searching += time.perf_counter() - begin
        self.searches += 1
        self.truncated |= search.truncated
        return search

    def result(self):
        """(metrics, further members of an arm's result, notes)"""
        account = self.storages.account(self.device)
        metrics = {name: (value, "B", None) for name, value in self.figures.items()}
        peak = max(account.peak, self.highest)
        metrics["memory.peak_bytes"] = (peak, "B", None)
        for phase in ("setup", "forward", "optimizer"):
            metrics[f"memory.{phase}_peak_bytes"] = (account.peaks.get(phase, 0), "B", None)
        on_gpu = self.device == "cuda"
        reserved = torch.cuda.max_memory_reserved() if on_gpu else None
        why = None if on_gpu else "PyTorch's allocator for the host reserves nothing"
        metrics["memory.reserved_peak_bytes"] = (reserved, "B", why)
        enough = len(self.ends.totals) > growth.LEAST_STEPS
        rate = sum(rate for _, rate, _ in self.ends.growing()) if enough else None
        why = None if enough else f"needs {growth.LEAST_STEPS + 1} steps"
        metrics["memory.growth_bytes"] = (rate, "B", why)
        if self.kinds:
            for kind in KINDS:
                metrics[f"memory.by_holder.{kind}"] = (self.kinds.get(kind, 0), "B", None)
        held = dict(account.peak_groups())
        if peak > sum(held.values()):
            held["unexplained", UNSEEN] = peak - sum(held.values())
        members = {
            "retained_by_holder": holders({("context", label): size for label, size in self.retained.items()}),
            "peak_by_holder": holders(held),
        }
        notes = [COUNTED_ON_GPU if on_gpu else COUNTED_ON_HOST]
        if self.truncated:
            notes.append("the search for holders ended early; what is unexplained may have a holder")
        return metrics, members, notes


def holders(sizes):
    named = [{"holder": f"{kind.replace('_', ' ')} of {label}" if label else kind.replace("_", " "), "bytes": size}
             for (kind, label), size in sizes.items() if size > 0]
    return sorted(named, key=lambda one: (-one["bytes"], one["holder"]))
