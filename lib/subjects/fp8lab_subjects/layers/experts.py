"""Mixtures of experts in eager PyTorch, in the arrangement of torchtitan (torchtitan/models/moe/moe.py).

A router scores all experts of a token in FP32, and topk chooses some. The choices are sorted by expert, tokens are
gathered in this order, and grouped products compute all experts at once. Outputs are weighted in FP32
(`score_before_experts=False`, as Qwen3 and Mixtral have it) and added to their tokens. Groups are not padded, except for
products in eight bits (alignment.py).
"""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from . import auxiliary_loss
from .dispatch import DividedGradient

ALIGNMENT = 16  # bytes that divide a row of each operand of _grouped_mm


class ExpertWeights(nn.Module):
    """The matrices [outputs, inputs] of all experts that this rank has as one parameter, and their biases as another one if
    they have some. `senders`: the ranks of which each has its own loss, and sends rows to these experts."""

    def __init__(self, cell, outputs, inputs, device, dtype, senders=1, has_bias=False):
        super().__init__()
        self.senders = senders
        self.weight = nn.Parameter(torch.empty(cell.own_experts, outputs, inputs, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(cell.own_experts, outputs, device=device, dtype=dtype)) if has_bias else None

    def read(self, parameter):
        return parameter if self.senders == 1 else DividedGradient.apply(parameter, self.senders)

    def forward(self, rows, ends):
        out = grouped_product(rows, self.read(self.weight), ends)
        if self.bias is None:
            return out
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        return out + self.read(self.bias).repeat_interleave(counts, dim=0, output_size=len(rows))


@functools.cache
def _has_grouped_product(device, dtype):
    """True if this release has grouped products for the device: for CPUs and for FP32 only newer ones have."""
    x, weight = torch.zeros(8, 8, dtype=dtype, device=device), torch.zeros(1, 8, 8, dtype=dtype, device=device)
    try:
        with torch.no_grad():
            torch._grouped_mm(x, weight, offs=torch.full((1,), 8, dtype=torch.int32, device=device))
    except (AttributeError, RuntimeError):
        return False
    return True


def takes_groups(weight, device=None):
    """True if torch._grouped_mm computes with this weight, on its device or another one. If not, one product for each expert
    does."""
    has_rows = all(size * weight.element_size() % ALIGNMENT == 0 for size in weight.shape[1:])
    return has_rows and _has_grouped_product(device or weight.device, weight.dtype)


def grouped_product(rows, weight, ends):
    """rows [choices, inputs], sorted by expert, times each expert's matrix. `ends` [experts]: the number of rows of
    each expert and of those before it."""
    if takes_groups(weight):
        return torch._grouped_mm(rows, weight.transpose(-2, -1), offs=ends)
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    return torch.cat([F.linear(own, matrix) for own, matrix in zip(rows.split(counts), weight, strict=True)])


class Balance(nn.Module):
    """The biases of a router's choice, and how many tokens have chosen each expert in this step (DeepSeek-V3). Both are
    buffers, which no optimizer changes."""

    def __init__(self, cell, device):
        super().__init__()
        for name in ("biases", "counts"):
            self.register_buffer(name, torch.zeros(cell["model.experts"], dtype=torch.float32, device=device))


def make_balance(cell, device):
    return Balance(cell, device) if cell.has_router_biases else None


def balances_of(built):
    return [module for module in built.modules() if isinstance(module, Balance)]


def copy_biases(of, to):
    """Gives routers the biases of a model with the same layers."""
    for one, other in zip(balances_of(of), balances_of(to), strict=True):
        other.biases.copy_(one.biases)


@torch.no_grad()
def update_biases(cell, built):
    """After an optimizer's step: a bias rises if its expert had fewer tokens of all ranks than the mean, and falls if it had
    more. Recomputed choices are counted twice, which changes no comparison with the mean."""
    balances = balances_of(built)
    if not balances:
        return
    counts = torch.stack([one.counts for one in balances])
    if cell.has_ranks:
        torch.distributed.all_reduce(counts)
    steps = torch.sign(counts.mean(dim=1, keepdim=True) - counts)
    for one, own in zip(balances, steps, strict=True):
        one.biases.add_(own, alpha=cell["model.router_bias_rate"])
        one.counts.zero_()


def limited(cell, scores):
    """`scores` [tokens, experts] without the experts of all groups but the `top_groups` in which the sum of the two largest
    scores is largest."""
    grouped = scores.view(len(scores), cell["model.expert_groups"], -1)
    sums = grouped.topk(2, dim=-1)[0].sum(dim=-1)
    chosen = sums.topk(cell["model.top_groups"], dim=-1)[1]
    left_out = torch.ones_like(sums, dtype=torch.bool).scatter_(1, chosen, False)
    return grouped.masked_fill(left_out.unsqueeze(-1), -torch.inf).flatten(1)


def choose(cell, scores, balance):
    """The numbers of each token's experts: biases and groups change the choice, and no weight."""
    if balance is not None:
        scores = scores + balance.biases
    if cell.expert_groups:
        scores = limited(cell, scores)
    return torch.topk(scores, cell["model.top_k"], dim=1)[1]


def counted(cell, chosen):
    """How many choices are each expert's, in FP32."""
    return torch.histc(chosen.view(-1).float(), bins=cell["model.experts"], min=0, max=cell["model.experts"])


def route(cell, logits, balance=None):
    """Weights of a token's experts, and their numbers, [tokens, top_k]. The softmax over all experts divided by its sum
    over the chosen ones is the softmax over the chosen ones."""
    logits = logits.float()
    scores = torch.sigmoid(logits) if cell["model.router"] == "sigmoid" else F.softmax(logits, dim=1)
    if balance is None and not cell.expert_groups:
        weights, chosen = torch.topk(scores, cell["model.top_k"], dim=1)
    else:
        chosen = choose(cell, scores, balance)
        weights = scores.gather(1, chosen)
    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * cell["model.router_scale"]
    if cell.router_aux_loss:
        weights = auxiliary_loss.joined(cell, weights, scores, counted(cell, chosen))
    return weights, chosen


def gathered(x, tokens):
    """The rows of x [tokens, hidden] whose numbers `tokens` [rows, hidden] repeats in each row."""
    return torch.gather(x, 0, tokens)


def mix(cell, x, router, experts, shared, balance=None, dispatch=None, rows_of=gathered):
    """The mixture's output for tokens x [tokens, hidden]. `experts` computes rows that are sorted by expert; `shared` is
    what every token has in addition, or None; `balance` has the biases of the choice, or is None. `dispatch` takes rows to
    the ranks of their experts (dispatch.py); None: this rank has all experts. `rows_of` takes the rows of x for experts."""
    weights, chosen = route(cell, router(x), balance)
    counts = counted(cell, chosen)
    if balance is not None:
        balance.counts.add_(counts)
    order = torch.argsort(chosen.view(-1), stable=True)
    weights = weights.view(-1)[order]
    tokens = (order // cell["model.top_k"]).reshape(-1, 1).expand(-1, x.shape[1])
    if dispatch is None:
        rows = rows_of(x, tokens)
        y = experts(rows, torch.cumsum(counts, 0, dtype=torch.int32))
    else:
        y = dispatch([rows_of(x, tokens)], counts, experts)
    out = torch.zeros_like(x) if shared is None else shared(x)
    y = (y.float() * weights.reshape(-1, 1)).to(x.dtype)
    return out.scatter_add(0, tokens, y)
