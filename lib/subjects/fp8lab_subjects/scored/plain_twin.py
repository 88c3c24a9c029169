"""The step of a trained model once more, by plain layers that hold the weights which it stores.

`again`: newly built layers of the same library over the same ranks and micro-batches, resharded and without
recomputation. Every product reads what was stored last, so bits are equal; they are not if a layer multiplies a
transpose, a cast or a gathered copy from before the optimizer's step.

`joined`: the same layers on one rank, in one pass over the sequences of all ranks and micro-batches; and `exact`, the
same of PyTorch's layers in FP32, which shows how much noise the recipe has for these values. Sums over ranks and
micro-batches have another order than on one rank, so these have a bound (lib/harness/measure/twin/bounds.h).
"""

import torch

from .. import cells, model
from ..libraries import torch_subject
from ..training import Run
from . import same_weights
from .twin_rules import batches

def plainly_trained(cell):
    return cell.changed(training__checkpoint="none", reshard_after_forward=True)


def on_one_rank(cell):
    return plainly_trained(cell).changed(
        ranks=1, mesh="", sharding="none", training__micro_batches=1, training__quantized_weights=False,
        model__batch=cell["model.batch"] * batches(cell),
    )


class JoinedRun(Run):
    """Reads the sequences of all ranks and micro-batches of `run` at once."""

    def __init__(self, run, cell):
        super().__init__(cell, run.subject, 0, run.device, run.instruments)
        self.of, self.step = run.cell, run.step

    def make_inputs(self, micro_batch):
        inputs, targets = [], []
        part = Run(self.of, self.subject, 0, self.device, [])
        part.step = self.step
        for number in range(batches(self.of)):
            part.rank, index = divmod(number, self.of["training.micro_batches"])
            part.make_inputs(index)
            inputs.append(part.x)
            targets.append(part.target)
        self.x = self._joined(inputs)
        self.target = None if targets[0] is None else self._joined(targets)

    def _joined(self, parts):
        """Row position * sequences + sequence; in the type of this run's parameters."""
        by_position = [part.view(self.of["model.seq"], self.of["model.batch"], *part.shape[1:]) for part in parts]
        joined = torch.cat(by_position, dim=1)
        joined = joined.reshape(-1, *joined.shape[2:])
        return joined.to(model.dtype_of(self.cell)) if joined.is_floating_point() else joined

    def last_outputs(self, output):
        """The output of each rank's last micro-batch."""
        of = self.of
        by_sequence = output.view(of["model.seq"], batches(of), of["model.batch"], -1)
        last = of["training.micro_batches"] - 1
        ranks = range(batches(of) // of["training.micro_batches"])
        return [by_sequence[:, rank * of["training.micro_batches"] + last] for rank in ranks]


def again(run, weights):
    """Every rank calls it."""
    return same_weights.pass_of(run, plainly_trained(run.cell), weights)


def joined(run, weights):
    """Outputs of each rank's last micro-batch, and gradients in the order of run.named_parameters(); on one rank."""
    cell = on_one_rank(run.cell)
    joined_run = JoinedRun(run, cell)
    done = same_weights.pass_of(joined_run, cell, weights)
    return joined_run.last_outputs(done.output), done.gradients


def exact(run, weights):
    """As joined(), in FP32."""
    cell = on_one_rank(run.cell).changed(arm=cells.BF16, training__param_dtype="f32")
    subject = torch_subject.make(cell, run.device)
    built = subject.make_model()
    subject.fill(built)
    names = [name for name, _ in run.named_parameters()]
    by_name = dict(zip(names, weights, strict=True))
    own = [model.own_name(name) for name, _ in built.named_parameters()]
    same_weights.store(built, [by_name[name] for name in own])
    exact_run = JoinedRun(run, cell)
    done = same_weights.one_pass(exact_run, subject, built)
    gradients = dict(zip(own, done.gradients, strict=True))
    return exact_run.last_outputs(done.output), [gradients[name] for name in names]
