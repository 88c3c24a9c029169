"""Which storages of tensors are alive, what made each, and who was found to hold it."""

import time
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ..ledger import has_subclass, inner_tensors, is_shape_only

GRAIN = {"cuda": 512}  # the allocator rounds sizes up to it


class Entry:
    """A storage that is alive. `group`: (kind of holder, label)."""

    __slots__ = ("reference", "size", "group", "made", "serial", "step", "device")

    def __init__(self, reference, size, group, serial, step, device):
        self.reference, self.size, self.group, self.made = reference, size, group, group
        self.serial, self.step, self.device = serial, step, device


class Account:
    """Bytes alive on one kind of device, by group, now and at the peak.

    Groups of the peak are corrected afterwards: a storage that is alive, and was made before the peak, was alive then.
    """

    def __init__(self):
        self.total = self.peak = self.peak_serial = 0
        self.groups, self._peak_groups, self.peaks = {}, {}, {}
        self.peak_place = None
        self._rising = False

    def change(self, entry, size, serial, place):
        """`place`: (phase, step) now."""
        if size < entry.size:
            self._keep_peak(serial)
        difference, entry.size = size - entry.size, size
        self.total += difference
        self.groups[entry.group] = self.groups.get(entry.group, 0) + difference
        if self.total > self.peak:
            self.peak, self.peak_place, self._rising = self.total, place, True
            self.peak_serial = serial
        if self.total > self.peaks.get(place[0], 0):
            self.peaks[place[0]] = self.total

    def _keep_peak(self, serial):
        if self._rising:
            self._rising, self._peak_groups = False, dict(self.groups)

    def move(self, entry, group):
        if group == entry.group:
            return
        of = [self.groups]
        if not self._rising and entry.serial <= self.peak_serial:
            of.append(self._peak_groups)
        for groups in of:
            groups[entry.group] = groups.get(entry.group, 0) - entry.size
            groups[group] = groups.get(group, 0) + entry.size
        entry.group = group

    def peak_groups(self):
        groups = self.groups if self._rising else self._peak_groups
        return {group: size for group, size in groups.items() if size > 0}


class Storages(TorchDispatchMode):
    """Registers every storage that an operation reads or returns, and calls `observers` with every operation.

    `place()` returns (phase, step, module's name) now. Operations of other threads of Python are not seen.
    """

    def __init__(self, place, observers, counts_storages):
        super().__init__()
        self.place, self.observers, self.counts_storages = place, observers, counts_storages
        self.entries, self.accounts, self.serial = {}, {}, 0
        self.off = True
        self.calls, self.spent = 0, 0.0  # operations seen, and seconds of bookkeeping

    def __enter__(self):
        """FSDP frees gathered parameters by resizing their storages, and allocates them so again. No operation shows it."""
        resize = torch.UntypedStorage.resize_

        def resize_and_note(storage, size):
            resized = resize(storage, size)
            if not self.off:
                self._note_size(storage)
            return resized

        torch.UntypedStorage.resize_ = resize_and_note
        return super().__enter__()

    def _note_size(self, storage):
        entry = self.entries.get(id(storage))
        if entry is None or entry.reference() is not storage:
            return
        size = self.rounded(storage.nbytes(), entry.device)
        if size != entry.size:
            self.account(entry.device).change(entry, size, self.serial, self.place()[:2])

    @classmethod
    def ignore_compile_internals(cls):
        return True  # what the compiler traces allocates nothing

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.off or is_shape_only(types):
            return function(*args, **kwargs)
        if has_subclass(types):
            return NotImplemented  # what a subclass does with its inner tensors comes here again
        begin = time.perf_counter()
        out = function(*args, **kwargs)
        called = time.perf_counter()
        if self.counts_storages:
            for value in tree_iter((args, kwargs, out)):
                if isinstance(value, torch.Tensor):
                    self.add(value)
        for observer in self.observers:
            observer(function, args, kwargs, out, called - begin)
        self.calls += 1
        self.spent += time.perf_counter() - called
        return out

    def account(self, device):
        if device not in self.accounts:
            self.accounts[device] = Account()
        return self.accounts[device]

    def add(self, tensor):
        """Registers the storages of a tensor. Returns their entries."""
        found = []
        for inner in inner_tensors(tensor):
            try:
                storage = inner.untyped_storage()
                device = storage.device.type
                if device == "meta":
                    continue
                size = self.rounded(storage.nbytes(), device)
            except (RuntimeError, NotImplementedError):
                continue  # a tensor without storage
            key = id(storage)
            entry = self.entries.get(key)
            phase, step, module = self.place()
            if entry is None or entry.reference() is None:
                self.serial += 1
                reference = weakref.ref(storage, lambda gone, key=key: self._remove(key, gone))
                entry = Entry(reference, 0, (f"made in {phase}", module), self.serial, step, device)
                self.entries[key] = entry
            if entry.size != size:
                self.account(device).change(entry, size, self.serial, (phase, step))
            found.append(entry)
        return found

    @staticmethod
    def rounded(size, device):
        grain = GRAIN.get(device, 1)
        return -(-size // grain) * grain

    def _remove(self, key, reference):
        entry = self.entries.get(key)
        if entry is not None and entry.reference is reference:
            del self.entries[key]
            self.account(entry.device).change(entry, 0, self.serial, self.place()[:2])

    def refresh(self):
        """Reads sizes again: a storage that C++ resizes is not seen until an operation reads it."""
        for entry in list(self.entries.values()):
            storage = entry.reference()
            if storage is not None:
                self._note_size(storage)

    def alive(self, device):
        """Entries by the identity of their storage."""
        return {key: one for key, one in list(self.entries.items()) if one.device == device and one.size}

    def move(self, entry, kind, label):
        self.account(entry.device).move(entry, (kind, label))


def seconds_of_crossing(times=100, batches=5):
    """What PyTorch spends on calling a mode for one operation, in seconds."""

    class Empty(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    def seconds():
        begin = time.perf_counter()
        for _ in range(times):
            one.add(1.0)
        return (time.perf_counter() - begin) / times

    one = torch.zeros(1)
    without = min(seconds() for _ in range(batches))
    with Empty():
        return max(0.0, min(seconds() for _ in range(batches)) - without)
