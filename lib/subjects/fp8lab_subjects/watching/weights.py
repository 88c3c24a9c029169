"""Weights that do not move, gradients that are not finite, and losses."""

import ctypes
import math
import zlib

import torch

from ..ledger import inner_tensors

MOST_LOSSES = 1024
CHUNK = 1 << 22  # elements that are copied to the host at a time


def checksum(tensor):
    """Checksum of a tensor's bits; None if this rank has none. Allocates nothing on a GPU for a contiguous tensor."""
    total = None
    for inner in inner_tensors(tensor.detach()):
        if inner.device.type == "meta" or inner.numel() == 0:
            continue
        flat = inner.contiguous().view(-1)
        for part in flat.split(CHUNK):
            part = part.cpu()
            total = zlib.crc32(ctypes.string_at(part.data_ptr(), part.numel() * part.element_size()), total or 0)
    return total


def has_non_finite(gradient):
    """The sum shows it, unless it overflows itself."""
    for inner in inner_tensors(gradient.detach()):
        if inner.is_sparse:
            inner = inner._values()  # as of an embedding; isfinite() has no sparse kernel
        if not (inner.is_floating_point() or inner.is_complex()) or inner.numel() == 0:
            continue
        if inner.element_size() == 1:
            inner = inner.float()  # PyTorch adds no FP8
        if not torch.isfinite(inner.sum()).item() and not torch.isfinite(inner).all().item():
            return True
    return False


def rounds_back(tensor, rate):
    """True if every step of `rate` leaves the 16-bit values as they are: it is less than half the distance to the next
    smaller one. Steps of Adam are about as large as their rate. Allocates two numbers."""
    for inner in inner_tensors(tensor.detach()):
        if inner.dtype not in (torch.bfloat16, torch.float16) or inner.device.type == "meta" or inner.numel() == 0:
            return False
        least, most = (float(one) for one in torch.aminmax(inner))
        smallest = least if least > 0 else -most
        # Values from 2^n on have a distance of eps 2^n, those below it half of that.
        if smallest <= 0 or rate >= torch.finfo(inner.dtype).eps * 2.0 ** math.floor(math.log2(smallest)) / 4:
            return False
    return True


class Weights:
    name = "parity"

    def __init__(self, session):
        self.session = session
        self.unmoved = {}  # name -> checksum before the first update
        self.seen = {}  # name -> True once an update could move it
        self.without_gradient = set()
        self.rates_rounded_off = {}  # name -> learning rate whose steps leave the weight as it is
        self.non_finite = {}  # name -> first step
        self.losses, self.of_step = [], []

    def backward_begins(self, roots):
        self.of_step += [one.detach() for one in roots if one.numel() == 1][:1]

    def before_update(self, optimizer):
        for name, parameter, group in self.session.parameters_of(optimizer):
            if not parameter.requires_grad:
                continue
            if name not in self.seen:
                self.seen[name] = False
                self.without_gradient.add(name)
                self.unmoved[name] = checksum(parameter)
                if rounds_back(parameter, float(group.get("lr", 1))):
                    self.rates_rounded_off[name] = float(group["lr"])
            self.seen[name] |= float(group.get("lr", 1)) != 0
            gradient = parameter.grad
            if gradient is None:
                continue
            self.without_gradient.discard(name)
            if name not in self.non_finite and has_non_finite(gradient):
                self.non_finite[name] = self.session.step

    def step_ends(self):
        for optimizer in self.session.optimizers() if self.unmoved else ():
            for name, parameter, _ in self.session.parameters_of(optimizer):
                if name in self.unmoved and checksum(parameter) != self.unmoved[name]:
                    del self.unmoved[name]
        if self.of_step:
            self.losses.append(sum(float(one) for one in self.of_step))  # whose gradient the step follows
            self.of_step = []

    def trained(self):
        """Names of weights of which this rank has elements that updates could move."""
        return [name for name, could_move in self.seen.items() if could_move and self.unmoved.get(name, 0) is not None]

    def still(self):
        """Names of those that have not moved."""
        return [name for name in self.trained() if name in self.unmoved]

    def result(self):
        trained = self.trained()
        why = None if trained else "no weight was updated"
        metrics = {
            "parity.weights_moved": (1 - len(self.still()) / len(trained) if trained else None, "1", why),
            "parity.gradients_not_finite": (len(self.non_finite) if trained else None, "1", why),
        }
        return metrics, {"losses": self.losses[-MOST_LOSSES:]} if self.losses else {}, []
