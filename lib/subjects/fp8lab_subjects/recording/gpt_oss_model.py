"""What torchtitan's GPT-OSS has in place of other models' attention, router and experts (torchtitan/models/gpt_oss and
torchtitan/models/common at `b5bcd76c`). Variables live as long as there, because functions begin and end at the same
operations.

Attention has sinks: its output is multiplied by sigmoid(LSE - sink). varlen_attn() returns output and LSE for sequences that are
packed one after the other, and takes no gradient of the LSE. Biases of experts become a row for each row of tokens.
"""

import typing

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from .. import model
from ..layers import experts

ALPHA = 1.702


class Documents(typing.NamedTuple):
    """Which token of its sequence a token is, and at which token sequences begin; the last number is the end of the last."""

    positions: torch.Tensor
    begins: torch.Tensor
    longest: int


def make_documents(cell, device):
    batch, seq = cell["model.batch"], cell.seq
    positions = torch.arange(seq, device=device).repeat(batch)
    begins = torch.arange(0, batch * seq + 1, seq, dtype=torch.int32, device=device)
    return positions, begins


def angles(cell, device):
    """Cosines and sines of a token's angles, [seq, 2 * head_dim]."""
    powers = 150000.0 ** (torch.arange(0, cell.head_dim, 2, dtype=torch.float32, device=device) / -cell.head_dim)
    turned = torch.outer(torch.arange(cell.seq, dtype=torch.float32, device=device), powers)
    turned = torch.cat((turned, turned), dim=-1)
    return torch.cat((turned.cos(), turned.sin()), dim=-1)


def partners(x):
    first = x[..., : x.shape[-1] // 2]
    second = x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def rotate(q, k, table):
    cosines, sines = table[..., : q.shape[-1]], table[..., q.shape[-1] :]
    wide_q, wide_k = q.float(), k.float()
    turned_q = wide_q * cosines + partners(wide_q) * sines
    turned_k = wide_k * cosines + partners(wide_k) * sines
    return turned_q.type_as(q), turned_k.type_as(k)


def kernel(cell, q, k, v, documents):
    """Output [tokens, heads, columns] and LSE [tokens, heads]. varlen_attn() has no kernel of a CPU: with values, the kernel that
    SDPA has there runs in its place. It has no window, which changes no figure."""
    scale = cell.head_dim**-0.5
    if isinstance(q, FakeTensor) or q.is_cuda:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn

        grouped, longest = q.shape[1] != k.shape[1], documents.longest
        out, sums = varlen_attn(
            q, k, v, documents.begins, documents.begins, longest, longest, return_aux=AuxRequest(lse=True), scale=scale,
            window_size=(cell.window - 1, 0), enable_gqa=grouped, num_splits=1,
        )  # fmt: skip
        return out, sums.transpose(0, 1)
    parts = (one.view(-1, cell.seq, *one.shape[1:]).transpose(1, 2) for one in (q, k, v))
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*parts, 0.0, True, scale=scale)
    return out.transpose(1, 2).reshape(q.shape), sums.transpose(1, 2).reshape(q.shape[:2])


def with_sinks(out, sums, sinks):
    share = torch.sigmoid(sums - sinks.view(1, -1)).unsqueeze(-1)
    return out * share.to(out.dtype)


class SinkAttention(nn.Module):
    """Attention of tokens [tokens, hidden]. One product makes Q, K and V, of which each is then copied."""

    def __init__(self, cell, device, dtype):
        super().__init__()
        hidden, heads, kv_heads = cell["model.hidden"], cell["model.heads"], cell.kv_heads
        self.cell = cell
        self.sinks = nn.Parameter(torch.zeros(heads, device=device, dtype=dtype))
        self.qkv = model.Linear(cell, hidden, (heads + 2 * kv_heads) * cell.head_dim, device, dtype, cell.qkv_bias)
        self.proj = model.Linear(cell, heads * cell.head_dim, hidden, device, dtype)
        self.register_buffer("table", angles(cell, device), persistent=False)  # each layer has its own

    def parts(self, x):
        cell = self.cell
        group = cell["model.heads"] // cell.kv_heads
        packed = self.qkv(x).view(len(x), cell.kv_heads, group + 2, cell.head_dim)
        return tuple(one.reshape(len(x), -1, cell.head_dim).contiguous() for one in packed.split((group, 1, 1), dim=-2))

    def turned(self, q, k, positions):
        return rotate(q, k, self.table[positions].view(len(q), 1, -1))

    def attend(self, q, k, v, documents):
        out, sums = kernel(self.cell, q, k, v, documents)
        return with_sinks(out, sums, self.sinks)

    def forward(self, x, documents):
        rows = x.flatten(0, 1)
        q, k, v = self.parts(rows)
        q, k = self.turned(q, k, documents.positions)
        out = self.attend(q, k, v, documents)
        return self.proj(out.reshape(len(rows), -1).contiguous()).view_as(x)


class WideRouter(model.Linear):
    """Computes logits in FP32, as under torch.autocast(dtype=torch.float32)."""

    def forward(self, x):
        return F.linear(x.float(), self.weight.float(), None if self.bias is None else self.bias.float())


class ExpertBiases(nn.Module):
    """A vector for each expert of this rank."""

    def __init__(self, cell, outputs, device, dtype):
        super().__init__()
        self.values = nn.Parameter(torch.zeros(cell.own_experts, outputs, device=device, dtype=dtype))

    def padded(self):
        """With a row of zeros at the end, for rows that are no expert's."""
        return torch.cat((self.values, self.values.new_zeros(1, self.values.shape[-1])))


def clamped_swiglu(x, limit):
    """Even columns are gates, odd ones are ups."""
    gate, up = x[..., ::2], x[..., 1::2]
    gate = gate.clamp(max=limit)
    up = up.clamp(min=-limit, max=limit)
    out = gate * torch.sigmoid(ALPHA * gate)
    return torch.addcmul(out, out, up)


def indexed(x, tokens):
    """As experts.gathered(), but autograd does not save x."""
    return x[tokens[:, 0]]


class ClampedMixture(nn.Module):
    """Experts with biases and limits. One grouped product makes gate and up."""

    def __init__(self, cell, device, dtype):
        super().__init__()
        hidden, width, where = cell["model.hidden"], cell.expert_ffn, (device, dtype)
        self.cell = cell
        self.router = WideRouter(cell, hidden, cell["model.experts"], *where)
        self.balance = experts.make_balance(cell, device)
        self.fc1, self.fc1_biases = experts.ExpertWeights(cell, 2 * width, hidden, *where), ExpertBiases(cell, 2 * width, *where)
        self.fc2, self.fc2_biases = experts.ExpertWeights(cell, hidden, width, *where), ExpertBiases(cell, hidden, *where)
        self.dispatch = None  # shard() sets it if ranks have the experts between them

    def expert_weights(self):
        return [self.fc1.weight, self.fc1_biases.values, self.fc2.weight, self.fc2_biases.values]

    def run_experts(self, rows, ends):
        total = len(rows)
        lengths = torch.diff(ends, prepend=ends.new_zeros(1), append=ends.new_full((1,), total)).long()
        both = self.fc1(rows, ends)
        first = self.fc1_biases.padded()
        first_of_rows = first.repeat_interleave(lengths, dim=0, output_size=total)
        both = both + first_of_rows
        activated = clamped_swiglu(both, self.cell["model.swiglu_limit"])
        out = self.fc2(activated, ends)
        second = self.fc2_biases.padded()
        second_of_rows = second.repeat_interleave(lengths, dim=0, output_size=total)
        return out + second_of_rows

    def forward(self, x):
        parts = self.router, self.run_experts, None, self.balance, self.dispatch
        return experts.mix(self.cell, x.flatten(0, 1), *parts, rows_of=indexed).view_as(x)
