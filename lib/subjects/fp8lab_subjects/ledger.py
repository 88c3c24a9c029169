"""How many bytes are alive: by the allocator's public figures on a GPU, by every tensor's storage on the host."""

import time
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

SETTLING_S = 0.002
PEAK_REPEATS, MARK_REPEATS = 6, 15


class HostLedger(TorchDispatchMode):
    """Counts the storages of all tensors that operations return while it is entered.

    PyTorch's allocator for the host has no figures. Temporaries that a kernel frees before it returns are not seen.
    """

    source = "storages of tensors; a kernel's own temporaries are not seen"

    def __init__(self):
        super().__init__()
        self._live = {}  # id of a storage -> weak reference to it
        self._peak = 0
        self._has_collectives = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if is_shape_only(types):
            return function(*args, **(kwargs or {}))
        if has_subclass(types):
            return NotImplemented  # what a subclass does with its inner tensors comes here again
        out = function(*args, **(kwargs or {}))
        for value in tree_iter((args, out)):
            if isinstance(value, torch.Tensor):
                self._add(value)
        self._has_collectives |= getattr(function, "namespace", "") == "c10d"
        if self._now() > self._peak:
            self._peak = max(self._peak, self._settled(PEAK_REPEATS))
        return out

    def _add(self, tensor):
        for inner in inner_tensors(tensor):
            storage = inner.untyped_storage()
            if storage.device.type == "meta":
                continue
            key = id(storage)
            if key not in self._live:
                self._live[key] = weakref.ref(storage, lambda _, key=key: self._live.pop(key, None))

    def allocated(self):
        return self._settled(MARK_REPEATS)

    def _settled(self, times):
        """The least of several figures: gloo's threads keep a collective's tensors for a moment after it has ended."""
        least = self._now()
        for _ in range(times if self._has_collectives else 0):
            time.sleep(SETTLING_S)
            least = min(least, self._now())
        return least

    def _now(self):
        total = 0
        for reference in list(self._live.values()):
            storage = reference()
            if storage is not None:
                total += storage.nbytes()
        return total

    reserved = None

    def peak(self):
        return max(self._peak, self.allocated())

    def reset_peak(self):
        self._peak = self.allocated()


class GpuLedger:
    """The figures of PyTorch's caching allocator. Blocks are multiples of 512 bytes."""

    source = "torch.cuda.memory_allocated"

    def __enter__(self):
        torch.cuda.synchronize()
        self._before = torch.cuda.memory_allocated()
        return self

    def __exit__(self, *error):
        return False

    def allocated(self):
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - self._before

    @property
    def reserved(self):
        return torch.cuda.max_memory_reserved()

    def peak(self):
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - self._before

    def reset_peak(self):
        torch.cuda.reset_peak_memory_stats()


def is_shape_only(types):
    """True for operations on FakeTensor, by which DTensor learns shapes: they compute and allocate nothing."""
    return any(one.__name__ == "FakeTensor" for one in types)


def has_subclass(types):
    return any(one not in (torch.Tensor, torch.nn.Parameter) for one in types)


def inner_tensors(tensor):
    """The tensors that a subclass is made of, or the tensor itself."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) or not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    found = []
    for name in names:
        inner = getattr(tensor, name, None)
        if isinstance(inner, torch.Tensor):
            found += inner_tensors(inner)
    return found
