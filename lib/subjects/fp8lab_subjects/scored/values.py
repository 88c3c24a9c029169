"""Values of a run as files, which the program scores: losses, output, gradients, weights."""

import ctypes
import json
import struct

import torch

from .. import cells, model, sharding
from . import plain_twin, same_weights, twin_rules
from ..training import Instrument


def plain(tensor):
    """A copy in FP32 on the host that no library's class wraps: a wrapper's own buffer is not where its values are."""
    out = torch.empty(tensor.shape, dtype=torch.float32)
    out.copy_(tensor.float().cpu())  # what copy_() returns has the wrapper's class
    return out


class LossInstrument(Instrument):
    """Keeps nothing, but losses have all their bits."""

    reads_values = True


class ValuesInstrument(Instrument):
    """Keeps what parity compares. Writes rank-R.json and one file of 32-bit floats for each kind of values."""

    reads_values = True

    def __init__(self, folder, has_twin):
        self.folder, self.has_twin, self.kept, self.input_gradient = folder, has_twin, {}, 0

    def built(self, run):
        # full_tensor() is a collective: every rank calls it for every parameter, in one order.
        self.kept["initial"] = [plain(sharding.full(parameter.detach())) for _, parameter in run.named_parameters()]
        self.gathered_equals = self._compare_with_unsharded(run)

    @staticmethod
    def _gradient(parameter, gradient):
        """This rank's rows; zeros for a parameter to which backward gave no gradient."""
        if gradient is None:
            return torch.zeros(sharding.local(parameter.detach()).numel())
        return plain(sharding.local(gradient))

    def _compare_with_unsharded(self, run):
        """True if the gathered parameters have the bits that they are given without sharding; None if none can."""
        equal = None
        for (name, parameter), seen in zip(run.named_parameters(), self.kept["initial"]):
            if not run.subject.keeps_initial_values(name):
                continue
            expected = torch.empty(seen.shape, dtype=parameter.dtype, device=run.device)
            model.fill_parameter(expected, name, run.cell, 0)
            equal = equal is not False and bool(torch.equal(expected.float().cpu(), seen))
        return equal

    def mark(self, run, name, last):
        if name == "end_of_forward" and last:
            self.kept["output"] = [plain(run.output.detach())]
        if name == "end_of_backward" and last:
            self.kept["gradients"] = [self._gradient(one, one.grad) for _, one in run.named_parameters()]

    def trained(self, run):
        weights = self.kept["weights"] = [plain(values) for values in run.subject.trained_weights(run.model)]
        if run.cell.arm == cells.BF16 and not self.has_twin:
            return
        self._keep_pass(run, "own", same_weights.settled_pass(run, run.subject, run.called))
        run.optimizer = run.output = run.loss = None  # room for a second model
        if run.cell.arm != cells.BF16:
            self._keep_pass(run, "bf16", same_weights.bf16_pass(run, weights))
        if self.has_twin:
            self._keep_twin(run, weights)

    def _keep_twin(self, run, weights):
        """Every rank makes these, as a library may have collectives in each pass; the first rank's are compared."""
        if twin_rules.has_equal_bits(run.cell):
            self._keep_pass(run, "again", plain_twin.again(run, weights))
        if twin_rules.why_not_joined(run.cell):
            return
        for of in (plain_twin.joined, plain_twin.exact):
            outputs, gradients = of(run, weights)
            self.kept[f"{of.__name__}_outputs"] = [plain(output) for output in outputs]
            self.kept[f"{of.__name__}_gradients"] = [self._gradient(*one) for one in zip(weights, gradients)]

    def _keep_pass(self, run, of, done):
        """The pass that `of` makes with the trained weights."""
        gradients = [self._gradient(one, gradient) for (_, one), gradient in zip(run.named_parameters(), done.gradients)]
        self.input_gradient = 0 if done.input_gradient is None else done.input_gradient.numel()
        if done.input_gradient is not None:
            gradients.append(plain(done.input_gradient))
        self.kept[f"{of}_pass_output"] = [plain(done.output)]
        self.kept[f"{of}_pass_gradients"] = gradients

    def results(self, run):
        self.folder.mkdir(exist_ok=True)
        for kind, tensors in self.kept.items():
            with open(self.folder / f"{kind}-{run.rank}.f32", "wb") as file:
                for tensor in tensors:
                    values = tensor.contiguous()  # read by address, since NumPy need not be installed
                    if type(values) is not torch.Tensor:
                        raise TypeError(f"{kind}: values of a {type(values).__name__} are not at its address")
                    file.write(ctypes.string_at(values.data_ptr(), 4 * values.numel()))
        with open(self.folder / f"losses-{run.rank}.f32", "wb") as file:
            file.write(struct.pack(f"{len(run.losses)}f", *run.losses))
        described = []
        for (name, parameter), gradient in zip(run.named_parameters(), self.kept["gradients"]):
            row, rows = parameter.numel() // max(1, parameter.shape[0]), sharding.full_rows(parameter)
            begin = sharding.first_row(parameter) * row
            own = sharding.local(parameter.detach()).numel()
            described.append(
                {"name": name, "elements": rows * row, "rows": rows if parameter.dim() > 1 else 1,
                 "gradient": gradient.numel(), "begin": begin, "end": begin + own}
            )
        about = {
            "tensors": described,
            "input_gradient": self.input_gradient,
            "gathered_equals_unsharded": self.gathered_equals,
        }
        (self.folder / f"rank-{run.rank}.json").write_text(json.dumps(about))
        return {}
