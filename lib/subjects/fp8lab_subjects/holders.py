"""Who holds which storage. The first owner wins, in the order in which claims are made."""

import types
import weakref

import torch

from .ledger import inner_tensors

DEPTH = 6  # levels of containers and objects inside each other
# A module's own tensors are claimed by its name; Python's modules and classes have no holder.
PASSED_OVER = (str, bytes, int, float, type, types.ModuleType, types.FunctionType, torch.nn.Module)


class Holders:
    """Claims of storages: identity -> (kind, label, bytes, address)."""

    def __init__(self):
        self.by_storage = {}
        self._keep = []  # storages, so that no identity is used twice while claims are made

    def claim(self, tensor, kind, label):
        for inner in inner_tensors(tensor):
            try:
                storage = inner.untyped_storage()
                address = storage.data_ptr()
            except (RuntimeError, NotImplementedError):
                continue  # a tensor without storage
            # A subclass that wraps other tensors may have a storage with a size and without memory.
            if address == 0 or inner.device.type == "meta" or id(storage) in self.by_storage:
                continue
            self._keep.append(storage)
            self.by_storage[id(storage)] = (kind, label, storage.nbytes(), address)

    def claim_inside(self, thing, kind, label, depth=DEPTH, seen=None):
        """Claims every tensor of a list, a dictionary or an object's attributes."""
        seen = set() if seen is None else seen
        if isinstance(thing, torch.Tensor):
            self.claim(thing, kind, label)
            return self.claim_attributes(thing, kind, label, depth, seen)
        if depth == 0 or id(thing) in seen or isinstance(thing, PASSED_OVER):
            return None
        seen.add(id(thing))
        if isinstance(thing, dict):
            for key, value in thing.items():
                # The text of a tensor lists its values.
                named = depth == DEPTH and not isinstance(key, torch.Tensor)
                self.claim_inside(value, kind, f"{label}: {key}" if named else label, depth - 1, seen)
        elif isinstance(thing, (list, tuple, set, frozenset)):
            for value in thing:
                self.claim_inside(value, kind, label, depth - 1, seen)
        else:
            self.claim_attributes(thing, kind, label, depth, seen)
        return None

    def claim_attributes(self, thing, kind, label, depth, seen):
        for name, value in list(getattr(thing, "__dict__", {}).items()):
            if name not in ("grad", "_grad"):
                self.claim_inside(value, kind, f"{label}.{name}" if depth == DEPTH else label, depth - 1, seen)

    def by_kind(self):
        out = {}
        for kind, _, size, _ in self.by_storage.values():
            out[kind] = out.get(kind, 0) + size
        return out

    def by_label(self, kinds=None):
        """Bytes by "kind of label", largest first."""
        out = {}
        for kind, label, size, _ in self.by_storage.values():
            if kinds is None or kind in kinds:
                name = f"{kind.replace('_', ' ')} of {label}" if label else kind.replace("_", " ")
                out[name] = out.get(name, 0) + size
        return sorted(((name, size) for name, size in out.items() if size), key=lambda one: (-one[1], one[0]))

    def by_address(self):
        return {address: (kind, label) for kind, label, _, address in self.by_storage.values()}

    def release(self):
        """Lets go of the storages, and keeps the figures."""
        self._weak = {id(storage): weakref.ref(storage) for storage in self._keep}
        self._keep = []

    def forget_living(self):
        """After release(): drops claims of storages that are still alive."""
        for key, reference in self._weak.items():
            if reference() is not None:
                self.by_storage.pop(key, None)


def nodes_from(tensor):
    """The nodes of the autograd graph behind a tensor."""
    found, stack = [], [tensor.grad_fn] if tensor is not None else []
    seen = set()
    while stack:
        node = stack.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        found.append(node)
        stack += [following for following, _ in node.next_functions]
    return found


def claim_contexts(holders, loss):
    """What autograd contexts hold: saved tensors that backward did not free, and attributes that layers gave them."""
    for number, node in enumerate(nodes_from(loss)):
        label = f"{node.name()}[{number}]"
        try:
            for tensor in getattr(node, "saved_tensors", ()):
                if tensor is not None:
                    holders.claim_inside(tensor, "context", f"{label}: saved")
        except RuntimeError:
            pass  # backward has freed them
        for name in dir(node):
            if not name.startswith("_saved_"):
                continue
            try:
                value = getattr(node, name)
            except RuntimeError:
                continue
            if isinstance(value, (torch.Tensor, tuple, list)):
                holders.claim_inside(value, "context", f"{label}: saved")
        holders.claim_inside(dict(getattr(node, "__dict__", {})), "context", label)
