"""The layers of fp8lab's runtime as torch modules, so that parameters have the runtime's names, shapes and order.

Inputs are [tokens, hidden], or a language model's [tokens]; token = position * batch + sequence. Parameters of `layers.0.qkv` are called `layers[0].qkv`
in results.
"""

import math
import re

import torch
import torch.nn.functional as F
from torch import nn

from . import philox, recomputation
from .layers import alignment, experts, limited_attention

EPSILON = 1e-5


def make_norm(cell, device, dtype):
    common = {"eps": EPSILON, "device": device, "dtype": dtype}
    if cell.gpt:
        return nn.LayerNorm(cell["model.hidden"], bias=cell.bias, **common)
    return nn.RMSNorm(cell["model.hidden"], **common)


def activated(cell, x):
    """The activation: of the gate, if the form has one."""
    return F.gelu(x, approximate="tanh") if cell.gpt or cell.gemma else F.silu(x)


def gated(cell, gate, up):
    """Both inputs of the last product of a gated MLP as one; with a limit as in GPT-OSS."""
    limit = cell.swiglu_limit
    if not limit:
        return activated(cell, gate) * up
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1)


def scaled_embeddings(cell, rows):
    """Times the root of hidden in the type of the rows, if the form scales them."""
    if not cell.gemma:
        return rows
    return rows * torch.tensor(math.sqrt(cell["model.hidden"]), dtype=rows.dtype).item()


def make_qk_norms(cell, device, dtype):
    """Norms over the columns of every query head and of every key head; None without them."""
    if not cell.qk_norm:
        return None, None
    return tuple(nn.RMSNorm(cell.head_dim, eps=EPSILON, device=device, dtype=dtype) for _ in range(2))


class Linear(nn.Linear):
    """A matrix product of the model."""

    def __init__(self, cell, inputs, outputs, device, dtype, bias=None):
        super().__init__(inputs, outputs, bias=cell.bias if bias is None else bias, device=device, dtype=dtype)

    def reset_parameters(self):
        """Values come from fill_parameters()."""


class LayerNormLinear(nn.Module):
    def __init__(self, cell, outputs, device, dtype, bias=None):
        super().__init__()
        self.norm = make_norm(cell, device, dtype)
        self.core = Linear(cell, cell["model.hidden"], outputs, device, dtype, bias)

    def forward(self, x):
        return self.core(self.norm(x))


class LayerNormMlp(nn.Module):
    def __init__(self, cell, device, dtype):
        super().__init__()
        self.cell, self.gated = cell, not cell.gpt
        self.norm = make_norm(cell, device, dtype)
        self.fc1 = Linear(cell, cell["model.hidden"], cell.ffn * (2 if self.gated else 1), device, dtype)
        self.fc2 = Linear(cell, cell.ffn, cell["model.hidden"], device, dtype)

    def forward(self, x):
        y = self.fc1(self.norm(x))
        if self.gated:
            y = gated(self.cell, *y.chunk(2, dim=-1))
        else:
            y = activated(self.cell, y)
        return self.fc2(y)


class ExpertMlp(nn.Module):
    """A mixture of experts. As the runtime's, one product makes gate and up of an expert."""

    def __init__(self, cell, device, dtype):
        super().__init__()
        self.cell, hidden, width = cell, cell["model.hidden"], cell.expert_ffn
        self.norm = make_norm(cell, device, dtype)
        self.router = Linear(cell, hidden, cell["model.experts"], device, dtype)
        self.balance = experts.make_balance(cell, device)
        common = {"device": device, "dtype": dtype, "senders": cell.expert_parallel, "has_bias": cell.bias}
        self.fc1 = experts.ExpertWeights(cell, 2 * width, hidden, **common)
        self.fc2 = experts.ExpertWeights(cell, hidden, width, **common)
        self.dispatch = None  # sharding.shard() sets it if ranks have the experts between them
        self.row_multiple = 1  # a library sets it whose products need groups of so many rows
        self.shared_fc1 = self.shared_fc2 = None
        if cell.shared_ffn:
            self.shared_fc1 = Linear(cell, hidden, 2 * cell.shared_ffn, device, dtype)
            self.shared_fc2 = Linear(cell, cell.shared_ffn, hidden, device, dtype)

    def expert_weights(self):
        return [*self.fc1.parameters(), *self.fc2.parameters()]

    def run_experts(self, rows, ends):
        if self.row_multiple > 1:
            return alignment.aligned(rows, ends, self.row_multiple, self.run_groups)
        return self.run_groups(rows, ends)

    def run_groups(self, rows, ends):
        return self.fc2(gated(self.cell, *self.fc1(rows, ends).chunk(2, dim=-1)), ends)

    def run_shared(self, x):
        return self.shared_fc2(gated(self.cell, *self.shared_fc1(x).chunk(2, dim=-1)))

    def forward(self, x):
        shared = None if self.shared_fc1 is None else self.run_shared
        return experts.mix(self.cell, self.norm(x), self.router, self.run_experts, shared, self.balance, self.dispatch)


def make_mlp(cell, device, dtype):
    return (ExpertMlp if cell.routes else LayerNormMlp)(cell, device, dtype)


def rotary_tables(cell, device):
    """Cosines and sines of the angles by which dimensions d and d + rotated_dim / 2 are rotated,
    [seq, 1, 1, rotated_dim / 2]."""
    half = cell.rotated_dim // 2
    powers = torch.arange(half, dtype=torch.float64) * (-2.0 / cell.rotated_dim)
    angles = torch.arange(cell["model.seq"], dtype=torch.float64)[:, None] * 10000.0**powers
    return tuple(f(angles).to(torch.float32).to(device)[:, None, None] for f in (torch.cos, torch.sin))


def rotate(x, tables):
    cosine, sine = tables
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


class MultiheadAttention(nn.Module):
    def __init__(self, cell, device, dtype):
        super().__init__()
        self.cell = cell
        heads, kv_heads = cell["model.heads"], cell.kv_heads
        self.qkv = LayerNormLinear(cell, (heads + 2 * kv_heads) * cell.head_dim, device, dtype, cell.qkv_bias)
        self.q_norm, self.k_norm = make_qk_norms(cell, device, dtype)
        self.sinks = nn.Parameter(torch.empty(heads, device=device, dtype=dtype)) if cell.has_sinks else None
        self.proj = Linear(cell, heads * cell.head_dim, cell["model.hidden"], device, dtype)

    def attend(self, q, k, v):
        if self.sinks is not None or self.cell.window:
            return limited_attention.attend(q, k, v, self.cell.window, self.sinks)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    def forward(self, x):
        cell = self.cell
        heads, kv_heads = cell["model.heads"], cell.kv_heads
        packed = self.qkv(x).view(cell["model.seq"], cell["model.batch"], heads + 2 * kv_heads, cell.head_dim)
        q, k, v = packed.split((heads, kv_heads, kv_heads), dim=2)
        if cell.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if not cell.gpt:
            tables = rotary_tables(cell, x.device)
            q, k = rotate(q, tables), rotate(k, tables)
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))  # [batch, heads, seq, head_dim]
        attended = self.attend(q, k, v)
        return self.proj(attended.permute(2, 0, 1, 3).reshape(cell.tokens, heads * cell.head_dim))


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V3): queries are made from one latent, keys and values from another one. The
    rotated part of a key is the same for all heads."""

    def __init__(self, cell, device, dtype):
        super().__init__()
        self.cell = cell
        hidden, heads, where = cell["model.hidden"], cell["model.heads"], (device, dtype)
        q_rank, kv_rank = cell["model.q_rank"], cell["model.kv_rank"]
        self.latents = nn.ModuleDict({"norm": make_norm(cell, *where)})
        self.q_down = Linear(cell, hidden, q_rank, *where, bias=False)
        self.q_norm = nn.RMSNorm(q_rank, eps=EPSILON, device=device, dtype=dtype)
        self.q_up = Linear(cell, q_rank, heads * cell.key_dim, *where, bias=False)
        self.kv_down = Linear(cell, hidden, kv_rank, *where, bias=False)
        self.kv_norm = nn.RMSNorm(kv_rank, eps=EPSILON, device=device, dtype=dtype)
        self.kv_up = Linear(cell, kv_rank, heads * (cell.head_dim + cell.value_dim), *where, bias=False)
        self.k_rope = Linear(cell, hidden, cell.rotated_dim, *where, bias=False)
        self.proj = Linear(cell, heads * cell.value_dim, hidden, *where)

    def heads_of(self, x, *columns):
        """x [tokens, heads * columns] as [seq, batch, heads, columns], in parts of these columns."""
        return x.view(self.cell["model.seq"], self.cell["model.batch"], -1, sum(columns)).split(columns, dim=-1)

    def queries(self, n, tables):
        q = self.q_up(self.q_norm(self.q_down(n)))
        plain, turned = self.heads_of(q, self.cell.head_dim, self.cell.rotated_dim)
        return torch.cat((plain, rotate(turned, tables)), dim=-1)

    def keys_and_values(self, n, tables):
        cell = self.cell
        turned = rotate(*self.heads_of(self.k_rope(n), cell.rotated_dim), tables)
        kv = self.kv_up(self.kv_norm(self.kv_down(n)))
        plain, v = self.heads_of(kv, cell.head_dim, cell.value_dim)
        return torch.cat((plain, turned.expand(-1, -1, cell["model.heads"], -1)), dim=-1), v

    def forward(self, x):
        cell = self.cell
        n = self.latents["norm"](x)
        tables = rotary_tables(cell, x.device)
        q = self.queries(n, tables)
        k, v = self.keys_and_values(n, tables)
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))  # [batch, heads, seq, columns]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=False)
        return self.proj(attended.permute(2, 0, 1, 3).reshape(cell.tokens, -1))


def make_attention(cell, device, dtype):
    return (LatentAttention if cell.has_latents else MultiheadAttention)(cell, device, dtype)


class TransformerLayer(nn.Module):
    def __init__(self, cell, device, dtype):
        super().__init__()
        self.attention = make_attention(cell, device, dtype)
        self.mlp = make_mlp(cell, device, dtype)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


LAYERS = {
    "linear": lambda cell, *where: Linear(cell, cell["model.hidden"], cell["model.hidden"], *where),
    "layernorm_linear": lambda cell, *where: LayerNormLinear(cell, cell["model.hidden"], *where),
    "layernorm_mlp": make_mlp,
    "multihead_attention": make_attention,
    "transformer_layer": TransformerLayer,
}


class Table(nn.Module):
    """Rows [entries, hidden]: of an embedding, of positions, of a head."""

    def __init__(self, cell, entries, device, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(entries, cell["model.hidden"], device=device, dtype=dtype))


class Model(nn.Module):
    """A chain of equal layers. A language model embeds tokens before them; a norm and a head make logits after them."""

    def __init__(self, cell, make_layer, device, dtype):
        super().__init__()
        self.cell, self.batch = cell, cell["model.batch"]
        self.embedding = self.positions = self.norm = self.head = None
        if cell.vocabulary:
            self.embedding = Table(cell, cell.vocabulary, device, dtype)
            if cell.learned_positions:
                self.positions = Table(cell, cell["model.seq"], device, dtype)
            self.norm = make_norm(cell, device, dtype)
            if cell["model.head"] == "own":
                self.head = Table(cell, cell.vocabulary, device, dtype)
        layers = range(cell["model.layers"])
        self.layers = nn.ModuleList(make_layer(cell.of_layer(index), device, dtype) for index in layers)

    def embed(self, tokens):
        """What the first layer reads."""
        if self.embedding is None:
            return tokens
        rows = scaled_embeddings(self.cell, F.embedding(tokens, self.embedding.weight))
        return rows if self.positions is None else rows + self.positions.weight.repeat_interleave(self.batch, dim=0)

    def forward(self, x):
        x = self.embed(x)
        for number, layer in enumerate(self.layers, 1):
            x = recomputation.call(self.cell, number, layer, x)
        return self.output_of(x)

    def output_of(self, x):
        """What the loss reads: of a language model logits, or what the head reads if the loss makes them in parts."""
        if self.embedding is None:
            return x
        hidden = self.norm(x)
        return hidden if self.cell.loss_chunks > 1 else self.logits_of(hidden)

    def logits_of(self, hidden):
        return F.linear(hidden, (self.embedding if self.head is None else self.head).weight)


def dtype_of(cell):
    return {"bf16": torch.bfloat16, "f32": torch.float32}[cell["training.param_dtype"]]


def build(cell, device):
    return Model(cell, LAYERS[cell["model.layer"]], device, dtype_of(cell))


def freeze(cell, built):
    """Takes the gradient from the cell's frozen layers, and from what is before them: embedding and positions. Before the
    model is sharded, since FSDP2 reads `requires_grad` then."""
    if not cell.frozen_layers:
        return
    before = [module for module in (built.embedding, built.positions) if module is not None]
    for module in [*before, *built.layers[: cell.frozen_layers]]:
        module.requires_grad_(False)


def own_name(name):
    """The runtime's name of a parameter of Model."""
    name = re.sub(r"^layers\.(\d+)", r"layers[\1]", name)
    name = re.sub(r"\.attention\.(?!sinks$)", ".", name).replace(".core.", ".")
    return re.sub(r"norm\.(weight|bias)$", lambda m: "norm." + {"weight": "gamma", "bias": "beta"}[m[1]], name)


def deviation(cell, name):
    """The standard deviation of a weight's initial values, as the runtime computes it in FP32."""
    value = torch.tensor(cell["model.init_std"], dtype=torch.float32)
    if cell["model.scaled_residuals"] and name.endswith((".proj.weight", ".fc2.weight", ".shared_fc2.weight")):
        value = value / torch.tensor(math.sqrt(2.0 * cell["model.layers"]), dtype=torch.float32)
    return value.item()


@torch.no_grad()
def fill_parameter(tensor, name, cell, first_row):
    """Gives rows first_row, first_row + 1, ... of the parameter that the runtime calls `name` their initial values."""
    if name.endswith(".weight"):
        row = tensor.numel() // tensor.shape[0] if tensor.numel() else 1
        philox.fill_normal(
            tensor,
            seed=cell["training.seed"],
            name=name,
            first_index=first_row * row,
            scale=deviation(cell, name),
        )
    else:
        tensor.fill_(1.0 if name.endswith(".gamma") else 0.0)
