"""Sketches of the tensors of a program, in the order of its execution: a file of each rank, for `fp8lab divergence`.

A sketch is 64 sums, into which an array's elements go with signs. The sum of squares of the difference of two sketches
estimates the sum of squares of the difference of the arrays, within about 18 %. lib/harness/values/sketch.h
describes it, and sketch.cpp makes the same numbers.
"""

import atexit
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
SCHEMA = "fp8lab.values/2"
SUMS, ROWS = 64, 1 << 12  # number of sums; rows of SUMS elements in a block
LARGEST = 1e150  # the square of what is larger may overflow, so it counts as infinite
# Operations whose operands are recorded: matrix products and attention.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "_int_mm", "_scaled_mm", "_scaled_grouped_mm", "_grouped_mm",
            "convolution", "convolution_backward")
ATTENTION = "scaled_dot_product"


def signed(value):
    """The 64-bit integer that has the same bits; products of PyTorch's integers wrap."""
    return value - (1 << 64) if value >> 63 else value


def hashes(index):
    """Hashes of a tensor of integers (splitmix64)."""

    def folded(value, bits):
        return value ^ ((value >> bits) & ((1 << (64 - bits)) - 1))

    value = index + signed(0x9E3779B97F4A7C15)
    value = folded(value, 30) * signed(0xBF58476D1CE4E5B9)
    value = folded(value, 27) * signed(0x94D049BB133111EB)
    return folded(value, 31)


def sketch_of(flat):
    """(norm, checksum of what is not finite, 64 sums) of a flat tensor."""
    device = flat.device
    columns = torch.arange(SUMS, device=device)
    sums = torch.zeros(SUMS, dtype=torch.float64, device=device)
    squares = torch.zeros((), dtype=torch.float64, device=device)
    not_finite = torch.zeros((), dtype=torch.int64, device=device)
    for block, part in enumerate(flat.split(SUMS * ROWS)):
        part = (part.float() if part.element_size() == 1 else part).double()  # FP8 has no conversion to FP64
        first = block * SUMS * ROWS
        finite = part.abs() <= LARGEST
        if not finite.all():
            kinds = torch.where(part.isnan(), 3, torch.where(part > 0, 1, 2))
            positions = torch.arange(first, first + len(part), device=device)
            not_finite += torch.where(finite, 0, hashes(4 * positions + kinds)).sum()
            part = torch.where(finite, part, 0.0)
        squares += part.square().sum()
        part = torch.nn.functional.pad(part, (0, -len(part) % SUMS)).view(-1, SUMS)
        rows = torch.arange(first // SUMS, first // SUMS + len(part), device=device)
        is_negative = (hashes(2 * rows)[:, None] << (SUMS - 1 - columns)) < 0  # the bit of the column is the sign bit
        order = columns ^ (hashes(2 * rows + 1)[:, None] & (SUMS - 1))
        sums += torch.where(is_negative, -part, part).gather(1, order).sum(0)
    return math.sqrt(squares.item()), not_finite.item() % (1 << 64), sums.tolist()


def is_capturing():
    """True while a CUDA graph is captured: nothing may be read back then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def columns_of(tensor):
    """The columns of a tensor in a file: type, shape, norm, checksums of its bits and of what is not finite, sums."""
    shape = "x".join(str(size) for size in tensor.shape) or "1"
    norm, not_finite, sums = sketch_of(tensor.reshape(-1))
    bits = checksum(tensor) or 0
    return [str(tensor.dtype).removeprefix("torch."), shape, f"{norm:.17g}", f"{bits:x}", f"{not_finite:x}",
            ",".join(f"{one:.17g}" for one in sums)]


class Values:
    name = "values"

    def __init__(self, session):
        self.session = session
        self.first, self.last = steps_of(os.environ.get(STEPS, ""))
        self.lines, self.file, self.written, self.tensors = [], None, 0, 0
        self.of_steps = ()  # the first and the last step of recorded tensors
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
            columns = columns_of(inner)
            self.lines.append("\t".join(" ".join(one.split()) for one in place) + "\t" + "\t".join(columns))
            self.tensors += 1
            self.of_steps = (*self.of_steps[:1], self.session.step) if self.of_steps else (self.session.step,) * 2

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

    def discard(self):
        """Steps so far were none: the next instrument of this process writes the file."""
        if self.file is not None and os.getpid() == self.process:
            self.file.close()
            os.unlink(self.file.name)
        self.file = None

    def path(self):
        return os.path.join(os.environ[FOLDER], f"rank-{self.session.rank()}.tsv")

    def _write(self):
        """Adds the lines of the step to the file of this rank."""
        if self.file is None:
            os.makedirs(os.environ[FOLDER], exist_ok=True)
            self.file = open(self.path(), "x", encoding="utf-8")  # another process may have this rank, too
            self.process = os.getpid()
            self.file.write(f"{SCHEMA}\n")
            atexit.register(self.close)
        self.file.write("".join(line + "\n" for line in self.lines))
        self.file.flush()
        self.written += len(self.lines)
        self.lines = []

    def close(self):
        """The last line shows that the program was not killed. A child of the program has the file, too, and so has an
        instrument of steps that are not counted."""
        if self.file is None or os.getpid() != self.process or self not in self.session.instruments:
            return
        try:
            if self.name not in self.session.failed:
                self._write()
                self.file.write(f"end\t{self.written}\n")
            self.file.close()
        except OSError:
            pass  # the recording has no last line
        self.file = None

    def result(self):
        return {}, {}, [f"{self.tensors} tensors recorded"]
