"""Subject `double`: PyTorch's layers with a defect that the version names, so that tests see what each metric finds.

`leak_context` and `leak_module` keep one byte too many; `extra_collective` reduces one number more in every step;
`gather_f32` gathers weights in a wider type; `frozen_weights` leaves out the first tensor in every step; `wrong_rank`
changes one weight on the last rank; `stale_transpose` multiplies gradients by the first layer's initial weights;
`first_micro_batch` uses only the gradient of the first micro-batch of a step; `sum_of_ranks` adds gradients of ranks up
and does not average them; `other_recompute` multiplies by 1.01 in recomputations of the first layer;
`crash` ends the last rank by a signal, `raise` by an error, `hang` never ends.
"""

import os
import signal
import time

import torch

from .. import model, sharding
from ..cells import BF16
from .torch_subject import TorchSubject


class LeakyIdentity(torch.autograd.Function):
    """Gives its context a tensor that backward does not free, as layers of libraries have done."""

    @staticmethod
    def forward(ctx, x):
        ctx.leaked = torch.ones(1, dtype=torch.uint8)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class StaleProduct(torch.autograd.Function):
    """x weight^T. Its backward multiplies by another copy of the weights, like a transpose from before the last step."""

    @staticmethod
    def forward(ctx, x, weight, stale):
        ctx.save_for_backward(x, stale)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, stale = ctx.saved_tensors
        return grad @ stale, grad.t() @ x, None


class OtherRecompute(model.Linear):
    def forward(self, x):
        # Autograd runs only while a backward does.
        return super().forward(x) * (1.01 if torch._C._current_graph_task_id() != -1 else 1.0)


class StaleLinear(model.Linear):
    stale = None

    def forward(self, x):
        if self.stale is None:
            self.stale = self.weight.detach().clone()
        product = StaleProduct.apply(x, self.weight, self.stale)
        return product if self.bias is None else product + self.bias


class DoubleSubject(TorchSubject):
    def __init__(self, cell, device):
        super().__init__(cell, device)
        self.defect = "" if cell.arm == BF16 else cell.version
        self.passes = 0  # in this step

    def _is_last_rank(self):
        return not torch.distributed.is_initialized() or (
            torch.distributed.get_rank() + 1 == torch.distributed.get_world_size()
        )

    def make_model(self):
        built = super().make_model()
        replaced = {"stale_transpose": StaleLinear, "other_recompute": OtherRecompute}.get(self.defect)
        if replaced is not None:
            next(module for module in built.modules() if type(module) is model.Linear).__class__ = replaced
        return built.float() if self.defect == "gather_f32" else built

    def make_optimizer(self, built):
        if self.defect == "frozen_weights":
            next(built.parameters()).requires_grad_(False)
        return super().make_optimizer(built)

    def forward(self, built, x):
        if self._is_last_rank():
            if self.defect == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.defect == "raise":
                raise ValueError("the version of the double is `raise`")
            if self.defect == "hang":
                time.sleep(3600)
        if self.defect == "gather_f32":
            return super().forward(built, x.float()).to(x.dtype)
        out = super().forward(built, x)
        self.passes += 1
        if self.defect == "first_micro_batch" and (self.passes - 1) % self.cell["training.micro_batches"] > 0:
            out = out.detach() + 0.0 * out
        if self.defect == "sum_of_ranks" and torch.distributed.is_initialized() and self.cell.sharded:
            out.register_hook(lambda grad: grad * self.cell["ranks"])
        return LeakyIdentity.apply(out) if self.defect == "leak_context" else out

    def stepped(self, built):
        if self.defect == "leak_module":
            built.kept_between_steps = torch.ones(1, dtype=torch.uint8)
        if self.defect == "extra_collective":
            torch.distributed.all_reduce(torch.ones(1))
        if self.defect == "wrong_rank" and self._is_last_rank():
            with torch.no_grad():
                sharding.local(next(built.parameters())).view(-1)[:1] += 1.0


def make(cell, device):
    return DoubleSubject(cell, device)
