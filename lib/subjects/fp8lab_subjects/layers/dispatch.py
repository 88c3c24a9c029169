"""Ranks that have a layer's experts between them, in the arrangement of torchtitan
(torchtitan/models/common/token_dispatcher.py at `b5bcd76c`, AllToAllTokenDispatcher): an all-to-all takes rows to the rank
of their expert, a permutation sorts them by expert, and a second all-to-all takes what experts return back."""

import torch
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor


class DividedGradient(torch.autograd.Function):
    """Returns `weight`, an expert's; its gradient is divided by the number of ranks whose rows the expert computes. FSDP2 then
    takes the mean over the ranks that have the same experts, so that both make the mean over all ranks."""

    @staticmethod
    def forward(ctx, weight, ranks):
        ctx.ranks = ranks
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.div_(ctx.ranks), None


class Dispatch:
    """`mesh` has the ranks that have the experts, each an equal part. Autograd takes gradients the other way."""

    def __init__(self, mesh):
        self.mesh, self.ranks = mesh, mesh.size()

    def split(self, counts):
        """Rows as numbers: to each rank, and from each rank."""
        return counts.view(self.ranks, -1).sum(dim=1).tolist()

    def moved(self, rows, received, sent):
        return wait_tensor(all_to_all_single(rows, received, sent, self.mesh))

    @torch.no_grad()
    def counted(self, counts):
        """From this rank's rows of each expert: the rows that each rank sends to each own expert, [ranks, experts]; and the
        numbers of rows that this rank sends to each rank, and receives from it."""
        counts = counts.long()
        theirs = self.moved(counts, None, None)
        return theirs.view(self.ranks, -1), self.split(counts), self.split(theirs)

    @torch.no_grad()
    def by_expert(self, theirs, total):
        """Numbers of the received rows in the order of their experts, and the end of each expert's rows."""
        begins = (theirs.flatten().cumsum(0) - theirs.flatten()).view_as(theirs).t().flatten()
        lengths = theirs.t().flatten()
        segments = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths, output_size=total)
        first = begins - (lengths.cumsum(0) - lengths)
        order = first[segments] + torch.arange(total, device=lengths.device)
        return order, torch.cumsum(theirs.sum(0), 0, dtype=torch.int32)

    def __call__(self, rows, counts, run_experts):
        """Outputs of the rows' experts. `rows` [choices, hidden] are sorted by expert, `counts` are the rows of each expert.
        `run_experts` computes rows that are sorted by own expert. Takes `rows` from its list."""
        theirs, sent, received = self.counted(counts)
        arrived = self.moved(rows.pop(), received, sent)
        order, ends = self.by_expert(theirs, len(arrived))
        shape, arrived = arrived.shape, [arrived]
        outputs = [run_experts(arrived.pop()[order], ends)]
        returning = torch.empty(shape, dtype=outputs[0].dtype, device=outputs[0].device)
        returning[order] = outputs.pop()
        return self.moved(returning, sent, received)
