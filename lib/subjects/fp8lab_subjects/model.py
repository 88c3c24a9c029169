"""The layers of fp8lab's runtime as torch modules, so that parameters have the runtime's names, shapes and order.

Inputs are [tokens, hidden]; token = position * batch + sequence. Parameters of `layers.0.qkv` are called `layers[0].qkv`
in results.
"""

import re

import torch
import torch.nn.functional as F
from torch import nn

from . import philox

EPSILON = 1e-5
DEVIATION = 0.02  # of initial weights


def make_norm(cell, device, dtype):
    kind = nn.RMSNorm if cell.llama else nn.LayerNorm
    return kind(cell["model.hidden"], eps=EPSILON, device=device, dtype=dtype)


class Linear(nn.Linear):
    """A matrix product of the model."""

    def __init__(self, cell, inputs, outputs, device, dtype):
        super().__init__(inputs, outputs, bias=not cell.llama, device=device, dtype=dtype)

    def reset_parameters(self):
        """Values come from fill_parameters()."""


class LayerNormLinear(nn.Module):
    def __init__(self, cell, outputs, device, dtype):
        super().__init__()
        self.norm = make_norm(cell, device, dtype)
        self.core = Linear(cell, cell["model.hidden"], outputs, device, dtype)

    def forward(self, x):
        return self.core(self.norm(x))


class LayerNormMlp(nn.Module):
    def __init__(self, cell, device, dtype):
        super().__init__()
        self.gated = cell.llama
        self.norm = make_norm(cell, device, dtype)
        self.fc1 = Linear(cell, cell["model.hidden"], cell.ffn * (2 if self.gated else 1), device, dtype)
        self.fc2 = Linear(cell, cell.ffn, cell["model.hidden"], device, dtype)

    def forward(self, x):
        y = self.fc1(self.norm(x))
        if self.gated:
            gate, up = y.chunk(2, dim=-1)
            y = F.silu(gate) * up
        else:
            y = F.gelu(y, approximate="tanh")
        return self.fc2(y)


def rotary_tables(cell, device):
    """Cosines and sines of the angles by which dimensions d and d + head_dim / 2 are rotated, [seq, 1, 1, head_dim / 2]."""
    half = cell.head_dim // 2
    powers = torch.arange(half, dtype=torch.float64) * (-2.0 / cell.head_dim)
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
        self.qkv = LayerNormLinear(cell, (heads + 2 * kv_heads) * cell.head_dim, device, dtype)
        self.proj = Linear(cell, heads * cell.head_dim, cell["model.hidden"], device, dtype)

    def forward(self, x):
        cell = self.cell
        heads, kv_heads = cell["model.heads"], cell.kv_heads
        packed = self.qkv(x).view(cell["model.seq"], cell["model.batch"], heads + 2 * kv_heads, cell.head_dim)
        q, k, v = packed.split((heads, kv_heads, kv_heads), dim=2)
        if cell.llama:
            tables = rotary_tables(cell, x.device)
            q, k = rotate(q, tables), rotate(k, tables)
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))  # [batch, heads, seq, head_dim]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
        return self.proj(attended.permute(2, 0, 1, 3).reshape(cell.tokens, heads * cell.head_dim))


class TransformerLayer(nn.Module):
    def __init__(self, cell, device, dtype):
        super().__init__()
        self.attention = MultiheadAttention(cell, device, dtype)
        self.mlp = LayerNormMlp(cell, device, dtype)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.mlp(x)


LAYERS = {
    "linear": lambda cell, *where: Linear(cell, cell["model.hidden"], cell["model.hidden"], *where),
    "layernorm_linear": lambda cell, *where: LayerNormLinear(cell, cell["model.hidden"], *where),
    "layernorm_mlp": LayerNormMlp,
    "multihead_attention": MultiheadAttention,
    "transformer_layer": TransformerLayer,
}


class Model(nn.Module):
    """A chain of equal layers."""

    def __init__(self, cell, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.recompute = cell["training.checkpoint"] == "full"

    def forward(self, x):
        for layer in self.layers:
            if self.recompute and torch.is_grad_enabled():
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return x


def dtype_of(cell):
    return {"bf16": torch.bfloat16, "f32": torch.float32}[cell["training.param_dtype"]]


def build(cell, device):
    make = LAYERS[cell["model.layer"]]
    return Model(cell, [make(cell, device, dtype_of(cell)) for _ in range(cell["model.layers"])])


def own_name(name):
    """The runtime's name of a parameter of Model."""
    name = re.sub(r"^layers\.(\d+)", r"layers[\1]", name)
    name = name.replace(".attention.", ".").replace(".core.", ".")
    return re.sub(r"norm\.(weight|bias)$", lambda m: "norm." + {"weight": "gamma", "bias": "beta"}[m[1]], name)


@torch.no_grad()
def fill_parameter(tensor, name, seed, first_row):
    """Gives rows first_row, first_row + 1, ... of the parameter that the runtime calls `name` their initial values."""
    if name.endswith(".weight"):
        row = tensor.numel() // tensor.shape[0] if tensor.numel() else 1
        philox.fill_normal(tensor, seed=seed, name=name, first_index=first_row * row, scale=DEVIATION)
    else:
        tensor.fill_(1.0 if name.endswith(".gamma") else 0.0)
