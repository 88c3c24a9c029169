"""What the recorder has of GPT-OSS (recording/gpt_oss_model.py) computes its definition in double: attention whose softmax has a
sink, and experts with biases and clamped SwiGLU. Windows are not compared, because a CPU's kernel has none."""

import sys

import torch
from fp8lab_subjects import cells
from fp8lab_subjects.recording import gpt_oss_model, torch_memory

KEYS = {
    "model.hidden": 48, "model.heads": 6, "model.kv_heads": 2, "model.head_dim": 8, "model.seq": 24, "model.batch": 2,
    "model.form": "llama", "model.bias": True, "model.attention_sinks": True, "model.experts": 5, "model.top_k": 2,
    "model.expert_ffn": 16, "model.swiglu_limit": 0.5, "training.param_dtype": "f32",
}  # fmt: skip
# Sums in FP32 of at most 48 terms below 10, in four products after the other.
BOUND = 4 * 48 * 10 * 2.0**-23


def filled(make, cell):
    generator = torch.Generator().manual_seed(3)
    built = make(cell, torch.device("cpu"), torch.float32)
    for parameter in built.parameters():
        parameter.data.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return built


def input_of(cell):
    shape = cell["model.batch"], cell["model.seq"], cell["model.hidden"]
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).requires_grad_()


def wide(built):
    """Its parameters in double."""
    return {name: parameter.detach().double().requires_grad_() for name, parameter in built.named_parameters()}


def turned(x):
    """x [batch, seq, heads, columns]: column i and column i + columns / 2 are turned by one angle."""
    half = x.shape[-1] // 2
    powers = 150000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None, None] * powers
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), dim=-1)


def defined_attention(cell, of, x):
    batch, seq, _ = x.shape
    kv_heads, group = cell.kv_heads, cell["model.heads"] // cell.kv_heads
    packed = (x @ of["qkv.weight"].T + of["qkv.bias"]).view(batch, seq, kv_heads, group + 2, cell.head_dim)
    q, k, v = turned(packed[..., :group, :].flatten(2, 3)), turned(packed[..., group, :]), packed[..., group + 1, :]
    k, v = (one.repeat_interleave(group, dim=2) for one in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / cell.head_dim**0.5
    scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), -torch.inf)
    sinks = of["sinks"].view(1, -1, 1, 1).expand(batch, -1, seq, 1)
    shares = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
    return torch.einsum("bhij,bjhd->bihd", shares, v).flatten(2) @ of["proj.weight"].T + of["proj.bias"]


def defined_expert(cell, of, expert, x):
    limit = cell["model.swiglu_limit"]
    both = x @ of["fc1.weight"][expert].T + of["fc1_biases.values"][expert]
    gate, up = both[::2].clamp(max=limit), both[1::2].clamp(-limit, limit)
    out = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    return out @ of["fc2.weight"][expert].T + of["fc2_biases.values"][expert]


def defined_mixture(cell, of, x):
    rows = []
    for token in x.flatten(0, 1):
        logits = of["router.weight"] @ token + of["router.bias"]
        chosen = torch.topk(logits, cell["model.top_k"])
        shares = torch.softmax(chosen.values, dim=0)
        outputs = [defined_expert(cell, of, expert, token) for expert in chosen.indices.tolist()]
        rows.append(sum(share * one for share, one in zip(shares, outputs, strict=True)))
    return torch.stack(rows).view(x.shape)


def distances(built, cell, defined, call, names):
    """By name, how far the output is from its definition, and the gradients of these parameters."""
    x = input_of(cell)
    built.zero_grad()
    of, out = wide(built), call(built, x)
    wanted = defined(cell, of, x.detach().double())
    weights = torch.linspace(-1, 1, out.numel()).view_as(out)
    (out * weights).sum().backward()
    (wanted * weights.double()).sum().backward()
    found = dict(built.named_parameters())
    far = {name: float((found[name].grad - of[name].grad).abs().max()) for name in names}
    return {"output": float((out - wanted).detach().abs().max()), **far}


def check(far, bound):
    assert all(distance <= bound for distance in far.values()), (far, bound)


def cell_of(**keys):
    return cells.Cell("after", {**torch_memory.DEFAULTS, **KEYS, **keys}, ["memory"], 0)


def check_attention():
    cell = cell_of()
    built = filled(gpt_oss_model.SinkAttention, cell)
    positions, begins = gpt_oss_model.make_documents(cell, "cpu")
    assert begins.tolist() == [0, 24, 48]
    documents = gpt_oss_model.Documents(positions, begins, cell["model.seq"])
    # As in varlen_attn(), LSE has no gradient, so gradients of Q and K lack a term.
    names = ["sinks", "proj.weight", "proj.bias"]
    check(distances(built, cell, defined_attention, lambda of, x: of(x, documents), names), BOUND)
    without = defined_attention(cell, {**wide(built), "sinks": torch.full((6,), -torch.inf).double()}, input_of(cell).double())
    assert float((built(input_of(cell), documents) - without).detach().abs().max()) > 0.1, "sinks change the output"


def check_mixture():
    cell = cell_of()
    built = filled(gpt_oss_model.ClampedMixture, cell)
    names = [name for name, _ in built.named_parameters()]
    check(distances(built, cell, defined_mixture, lambda of, x: of(x), names), BOUND)
    far = distances(built, cell_of(**{"model.swiglu_limit": 0.4}), defined_mixture, lambda of, x: of(x), names)
    assert min(far["output"], far["fc1.weight"]) > 10 * BOUND, "the limit changes the output"


if __name__ == "__main__":
    check_attention()
    check_mixture()
    sys.exit(0)
