"""Sketches of the tensors of a program, in the order of its execution: a file of each rank, for `fp8lab divergence`.

A sketch is 64 sums of an array's elements under fixed signs. The sum of squares of the difference of two sketches
estimates the sum of squares of the difference of the arrays, within about 18 %. lib/harness/values/sketch.cpp makes
the same numbers.
"""

import math
import os

import torch
from torch.utils._pytree import tree_iter

from ..ledger import inner_tensors
from .attaching import steps_of
from .owners import WRAPPED
from .weights import checksum

FOLDER = "FP8LAB_VALUES"  # the folder of the files
STEPS = "FP8LAB_VALUES_STEPS"  # "1:3", both included
SCHEMA = "fp8lab.values/1"
SUMS, ROWS = 64, 1 << 14
MASK = (1 << 64) - 1
# Operations whose operands are recorded: matrix products and attention.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "_int_mm", "_scaled_mm", "_scaled_grouped_mm", "_grouped_mm",
            "convolution", "convolution_backward")
ATTENTION = "scaled_dot_product"


def sign(index):
    """1 or -1 by a hash of `index` (splitmix64)."""
    value = (index + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return -1.0 if ((value ^ (value >> 31)) & 1) else 1.0


class Sketches:
    """Makes sketches; keeps the signs on each device."""

    def __init__(self):
        self.signs = {}

    def _signs_on(self, device):
        if device not in self.signs:
            self.signs[device] = torch.tensor([sign(row) for row in range(ROWS)], dtype=torch.float64, device=device)
        return self.signs[device]

    def of(self, flat):
        """(norm, 64 sums) of a flat tensor."""
        sums = torch.zeros(SUMS, dtype=torch.float64, device=flat.device)
        squares = torch.zeros((), dtype=torch.float64, device=flat.device)
        for index, part in enumerate(flat.split(SUMS * ROWS)):
            part = (part.float() if part.element_size() == 1 else part).double()  # FP8 has no conversion to FP64
            squares += part.square().sum()
            if part.numel() % SUMS:
                part = torch.nn.functional.pad(part, (0, SUMS - part.numel() % SUMS))
            rows = part.view(-1, SUMS)
            sums += sign((1 << 32) + index) * (self._signs_on(flat.device)[: len(rows)] @ rows)
        return math.sqrt(squares.item()), sums.tolist()


def is_capturing():
    """True while a CUDA graph is captured: nothing may be read back then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def columns_of(tensor, sketches):
    """The columns of a tensor in a file: type, shape, norm, checksum of its bits, sums."""
    shape = "x".join(str(size) for size in tensor.shape) or "1"
    norm, sums = sketches.of(tensor.reshape(-1))
    if not math.isfinite(norm):
        norm, sums = math.nan, []
    bits = checksum(tensor) or 0
    return [str(tensor.dtype).removeprefix("torch."), shape, f"{norm:.17g}", f"{bits:x}", ",".join(f"{one:.17g}" for one in sums)]


class Values:
    name = "values"

    def __init__(self, session):
        self.session = session
        self.first, self.last = steps_of(os.environ.get(STEPS, ""))
        self.sketches, self.lines, self.file, self.tensors = Sketches(), [], None, 0
        self.inputs_end = 0  # lines before the first line after the model's inputs
        self.known = set()  # models whose initial weights are recorded, by identity

    def _is_wanted(self):
        return self.session.step >= self.first and (self.last is None or self.session.step <= self.last)

    def _record(self, phase, module, name, tensor):
        if not self._is_wanted() or is_capturing():
            return
        for index, inner in enumerate(inner_tensors(tensor.detach())):
            if inner.layout != torch.strided or inner.device.type == "meta" or inner.numel() == 0 or inner.is_complex():
                continue
            called = name if index == 0 else f"{name}, part {index + 1}"
            place = [str(self.session.step), phase, module, called]
            columns = columns_of(inner, self.sketches)
            self.lines.append("\t".join(" ".join(one.split()) for one in place) + "\t" + "\t".join(columns))
            self.tensors += 1

    def _record_tree(self, phase, module, name, tree):
        tensors = [one for one in tree_iter(tree) if isinstance(one, torch.Tensor)]
        for index, tensor in enumerate(tensors):
            self._record(phase, module, name if len(tensors) == 1 else f"{name}[{index}]", tensor)
        return tensors

    def _named(self, module):
        return WRAPPED.sub("", self.session.name_of(module))

    def called(self, module, inputs):
        """The outermost module is called."""
        for prefix, model in self.session.models():
            if id(model) in self.known or not self._is_wanted():
                continue
            self.known.add(id(model))
            for name, parameter in model.named_parameters():
                self._record("setup", prefix + WRAPPED.sub("", name), "weight", parameter)
        self._record_tree("forward", self._named(module), "input", inputs)
        self.inputs_end = len(self.lines)

    def got_keywords(self, module, keywords):
        """The outermost module returns; its inputs precede what it computed."""
        later = self.lines[self.inputs_end:]
        del self.lines[self.inputs_end:]
        for name, tree in keywords.items():
            self._record_tree("forward", self._named(module), f"input {name}", tree)
        self.lines += later

    def returned(self, module, output):
        name = self._named(module)
        for index, tensor in enumerate(self._record_tree(self.session.phase, name, "output", output)):
            if tensor.requires_grad and not tensor.is_leaf:
                label = "gradient of output" + (f"[{index}]" if index else "")
                tensor.register_hook(lambda grad, label=label: self.session.tell("saw_gradient", name, label, grad))

    def saw_gradient(self, module, label, gradient):
        if gradient is not None:
            self._record("backward", module, label, gradient)

    def observe(self, function, args, kwargs, out, seconds):
        name = getattr(function, "__name__", "").partition(".")[0]
        if name not in PRODUCTS and ATTENTION not in name:
            return
        stack, phase = self.session.stack, self.session.phase
        module = self._named(stack[-1][0]) if stack else ""
        operands = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        for index, tensor in enumerate(operands):
            self._record(phase, module, f"operand {index + 1} of {name}", tensor)

    def before_update(self, optimizer):
        for name, parameter, _ in self.session.parameters_of(optimizer):
            if parameter.grad is not None:
                self._record("backward", name, "gradient", parameter.grad)

    def step_ends(self):
        for optimizer in self.session.optimizers():
            for name, parameter, _ in self.session.parameters_of(optimizer):
                self._record("optimizer", name, "updated weight", parameter)
        self._write()

    def ends_incomplete(self, why):
        """Nothing more is recorded. A line of the file names the failure, and `fp8lab divergence` refuses the file."""
        self.lines = [f"the recording is incomplete: {' '.join(why.split())}"]
        try:
            self._write()
        except OSError:
            pass  # the program's results name the failure

    def _write(self):
        """Adds the lines of the step to the file of this rank."""
        if self.file is None:
            os.makedirs(os.environ[FOLDER], exist_ok=True)
            path = os.path.join(os.environ[FOLDER], f"rank-{self.session.rank()}.tsv")
            self.file = open(path, "w", encoding="utf-8")
            self.file.write(f"{SCHEMA}\n")
        self.file.write("".join(line + "\n" for line in self.lines))
        self.file.flush()
        self.lines = []

    def close(self):
        if self.file is not None:
            self.file.close()

    def result(self):
        return {}, {}, [f"{self.tensors} tensors recorded"]
