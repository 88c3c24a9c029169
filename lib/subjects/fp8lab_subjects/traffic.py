"""Collectives of the last step: kinds, bytes and types, counted when PyTorch dispatches them."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from .ledger import has_subclass, is_shape_only
from .training import Instrument

# How operations of namespaces c10d and _c10d_functional begin, and what they are. Waiting moves nothing.
KINDS = {
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
}
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def kind_of(function):
    """all_gather, reduce_scatter, ... or None for what is no collective."""
    if getattr(function, "namespace", "") not in NAMESPACES:
        return None
    name = function.overloadpacket.__name__.lstrip("_")
    return next((kind for begin, kind in KINDS.items() if name.startswith(begin)), None)


def moved(values):
    """Bytes and types of the tensors of a value."""
    tensors = [value for value in tree_iter(values) if isinstance(value, torch.Tensor) and value.device.type != "meta"]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
    return sum(sizes), "+".join(types)


class Collectives(TorchDispatchMode):
    """A list of (kind, bytes of the unsharded tensor, type)."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        shape_only = is_shape_only(types)
        if has_subclass(types) and not shape_only:
            return NotImplemented  # what a subclass does with its inner tensors comes here again
        kind = None if shape_only else kind_of(function)
        if kind is None:
            return function(*args, **(kwargs or {}))
        given = moved((args, kwargs or {}))
        out = function(*args, **(kwargs or {}))
        self.calls.append((kind, *self._size(function, kind, args, out, given)))
        return out

    @staticmethod
    def _size(function, kind, args, out, given):
        """Bytes of the tensor over all ranks: what a gather writes, what a scatter reads."""
        if function.namespace == "c10d":  # arguments (output, input, ...), of which the larger is the unsharded one
            return max(moved(args[0]), moved(args[1])) if len(args) > 1 and kind != "all_reduce" else moved(args[0])
        return moved(out) if kind == "all_gather" else given


class TrafficInstrument(Instrument):
    def __init__(self):
        self.mode = Collectives()
        self.mode.__enter__()
        self.first = 0
        self.open = True

    def mark(self, run, name, last):
        if name == "end_of_step" and last and run.cell.planted and run.cell.has_ranks:
            torch.distributed.barrier()
            self.mode.calls.append(("barrier", 0, "none"))
        if name == "end_of_step" and not last:
            self.first = len(self.mode.calls)

    def built(self, run):
        self.first = len(self.mode.calls)

    def trained(self, run):
        self.step = self.mode.calls[self.first :]
        self.close()
        self.to_experts = self._sent_to_experts(run)

    def _sent_to_experts(self, run):
        """What the ranks that have experts between them send to each other and to themselves: how much each of them sends
        depends on the choices of experts."""
        sent = sum(size for kind, size, _ in self.step if kind == "all_to_all")
        parts = run.cell.expert_parallel
        if parts == 1:
            return sent
        total = torch.tensor([sent], dtype=torch.int64, device=run.device)
        torch.distributed.all_reduce(total)
        return total.item() * parts // run.cell["ranks"]  # every such group of ranks sends as much

    def close(self):
        if self.open:
            self.open = False
            self.mode.__exit__(None, None, None)

    def results(self, run):
        communicates = run.cell.has_ranks
        why = None if communicates else "nothing is sharded"

        def of(kind):
            return sum(size for name, size, _ in self.step if name == kind) if communicates else None

        counted = {}
        for call in self.step:
            counted[call] = counted.get(call, 0) + 1
        for (kind, size, dtype), times in sorted(counted.items()):
            run.notes.append(f"{times} x {kind} of {size} B in {dtype}")
        unknown = "a library's collectives do not say which bytes are scales"
        return {
            "traffic.all_gather_bytes": (of("all_gather"), "B", why),
            "traffic.all_gather_payload_bytes": (None, "B", why or unknown)
            if run.cell.recipe != "bf16"
            else (of("all_gather"), "B", why),
            "traffic.all_gather_scale_bytes": (None, "B", why or unknown)
            if run.cell.recipe != "bf16"
            else (0 if communicates else None, "B", why),
            "traffic.reduce_scatter_bytes": (of("reduce_scatter"), "B", why),
            "traffic.all_reduce_bytes": (of("all_reduce"), "B", why),
            "traffic.all_to_all_bytes": (self.to_experts if communicates else None, "B", why),
            "traffic.collectives": (len(self.step) if communicates else None, "1", why),
        }
