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
    """By the identity of parameters, which optimizers keep alive: their names may be known later."""

    name = "parity"

    def __init__(self, session):
        self.session = session
        self.names = {}
        self.unmoved = {}  # checksums before the first update
        self.seen = {}  # True once an update could move it
        self._without_gradient = set()
        self._rates_rounded_off = {}  # learning rates whose steps leave the weight as it is
        self._non_finite = {}  # first steps
        self.losses, self.of_step = [], []

    def backward_begins(self, roots):
        self.of_step += [one.detach() for one in roots if one.numel() == 1][:1]

    def before_update(self, optimizer):
        for name, parameter, group in self.session.parameters_of(optimizer):
            if not parameter.requires_grad:
                continue
            key = id(parameter)
            self.names[key] = name
            if key not in self.seen:
                self.seen[key] = False
                self._without_gradient.add(key)
                self.unmoved[key] = checksum(parameter)
                if rounds_back(parameter, float(group.get("lr", 1))):
                    self._rates_rounded_off[key] = float(group["lr"])
            self.seen[key] |= float(group.get("lr", 1)) != 0
            gradient = parameter.grad
            if gradient is None:
                continue
            self._without_gradient.discard(key)
            if key not in self._non_finite and has_non_finite(gradient):
                self._non_finite[key] = self.session.step

    def step_ends(self):
        for optimizer in self.session.optimizers() if self.unmoved else ():
            for name, parameter, _ in self.session.parameters_of(optimizer):
                key = id(parameter)
                if key not in self.unmoved:
                    continue
                self.names[key] = name
                if parameter.grad is not None:  # the optimizer itself may have computed it
                    self._without_gradient.discard(key)
                if checksum(parameter) != self.unmoved[key]:
                    del self.unmoved[key]
        if self.of_step:
            self.losses.append(sum(float(one) for one in self.of_step))  # whose gradient the step follows
            self.of_step = []

    def _named(self, keys):
        return [self.names[key] for key in keys]

    def _trained(self):
        return [key for key, could_move in self.seen.items() if could_move and self.unmoved.get(key, 0) is not None]

    def trained(self):
        """Names of weights of which this rank has elements that updates could move."""
        return self._named(self._trained())

    def still(self):
        """Names of those that have not moved."""
        return self._named(key for key in self._trained() if key in self.unmoved)

    @property
    def without_gradient(self):
        return set(self._named(self._without_gradient))

    @property
    def rates_rounded_off(self):
        return {self.names[key]: rate for key, rate in self._rates_rounded_off.items()}

    @property
    def non_finite(self):
        """{name: first step}"""
        return {self.names[key]: step for key, step in self._non_finite.items()}

    def result(self):
        trained = self.trained()
        why = None if trained else "no weight was updated"
        metrics = {
            "parity.weights_moved": (1 - len(self.still()) / len(trained) if trained else None, "1", why),
            "parity.gradients_not_finite": (len(self._non_finite) if trained else None, "1", why),
        }
        return metrics, {"losses": self.losses[-MOST_LOSSES:]} if self.losses else {}, []
