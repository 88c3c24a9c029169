"""One more step of a trained model, and of BF16 layers that hold the weights which it stores.

Both have the same weights and tokens, so their gradients differ only by the noise of casts, after any number of steps.
They differ by more if a product reads other weights than the stored ones, such as a transpose from before the
optimizer's step.
"""

import dataclasses

import torch

from .. import cells, sharding, subjects
from ..layers import experts


@dataclasses.dataclass
class Pass:
    """What one forward and backward gave; `input_gradient` is None if the input is tokens."""

    output: torch.Tensor
    gradients: list
    input_gradient: torch.Tensor | None


def settled_pass(run, subject, called):
    """As one_pass. Under delayed scaling the scales follow from passes before, which would clip what an update of the
    weights enlarged; the second time they follow from these very tokens."""
    if subject.cell.recipe == "delayed":
        one_pass(run, subject, called)
    return one_pass(run, subject, called)


def one_pass(run, subject, called):
    """Forward and backward of all micro-batches of the last step, whose gradients add up; output and input are the last
    one's. `gradients` has the order of called.parameters()."""
    for index in range(run.cell["training.micro_batches"]):
        run.make_inputs(index)
        subject.micro_batch = index
        x = run.x.detach()
        if x.is_floating_point():
            x.requires_grad_(True)
        with sharding.passing(called, run.is_last(index)):
            output = subject.forward(called, x)
            run.backward(run.loss_of(output))
    gradients = [parameter.grad for parameter in called.parameters()]
    for parameter in called.parameters():
        parameter.grad = None
    return Pass(output.detach(), gradients, x.grad)


@torch.no_grad()
def store(built, weights):
    for parameter, values in zip(built.parameters(), weights, strict=True):
        rows = sharding.local(parameter.detach())
        first = sharding.first_row(parameter)
        rows.copy_(values[first : first + rows.shape[0]] if rows.dim() else values)


def pass_of(run, cell, weights):
    """The pass of newly built layers of `cell` that hold `weights`, unsharded values of each parameter. Every rank that
    trains the cell calls it."""
    subject = subjects.load(cell.subject).make(cell, run.device)
    built = subject.make_model()
    if cell.sharded:
        sharding.shard(cell, built, run.device.type)
        subject.sharded(built)
    subject.fill(built)
    store(built, weights)
    if run.model is not None:
        experts.copy_biases(run.model, built)
    return settled_pass(run, subject, sharding.replicated(cell, built))


def bf16_pass(run, weights):
    """The pass of BF16 layers over the same ranks."""
    return pass_of(run, run.cell.changed(arm=cells.BF16), weights)
