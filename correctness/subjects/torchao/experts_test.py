"""torchao's products for mixtures: exactly the weights of experts are wrapped and the other products are torchao's linear
layers; products are their definition, with the scales that notes of a result name; a lost expert is seen. Groups are padded
as products need. On a CPU torchao emulates MXFP8; FP8 needs a GPU. Without torchao only padding is tested."""

import importlib.util
import math

import torch
from fp8lab_subjects import abilities, cells, model, subjects
from fp8lab_subjects.layers import alignment, experts
from fp8lab_subjects.recording import torch_memory

KEYS = {
    "subject": "torchao", "model.layer": "transformer_layer", "model.form": "llama", "model.hidden": 64, "model.heads": 4,
    "model.kv_heads": 2, "model.ffn": 128, "model.seq": 48, "model.batch": 2, "model.layers": 2, "model.experts": 6,
    "model.top_k": 2, "model.expert_ffn": 96, "model.shared_experts": 1, "model.dense_layers": 1, "model.router": "softmax",
    "model.router_scale": 1.0, "model.expert_groups": 0, "model.router_bias_rate": 0.0, "model.router_aux_loss": 0.0,
    "model.vocabulary": 0, "training.param_dtype": "bf16", "training.seed": 3, "training.quantized_weights": False,
}  # fmt: skip
# Decibels. Rounding to BF16 is off by 2^-8 of a value at most, and half as much more is allowed for a GPU's sums, which have
# 13 fraction bits.
EXACT = 20 * math.log10(2.0**8 / 1.5)
# A cast to E4M3 by other scales is off by up to 2^-4 of a value.
OTHER_CASTS = 40
# What fp8lab requires of one mixture: 24 dB of a product, minus the noise of four, minus 3 dB.
GATE = 14.9


def cell_of(arm="after", **keys):
    changed = {name.replace("__", "."): value for name, value in keys.items()}
    return cells.Cell(arm, {**torch_memory.DEFAULTS, **KEYS, **changed}, ["parity"], 0)


def sqnr(got, expected):
    noise = (got.double().cpu() - expected.double().cpu()).square().sum().item()
    return math.inf if noise == 0 else 10 * math.log10(expected.double().square().sum().item() / noise)


def least_sqnr(got, expected):
    """Decibels of the worst line along any axis."""
    noise, signal = (got.double().cpu() - expected).square(), expected.square()
    lines = [(signal.sum(axis), noise.sum(axis)) for axis in range(signal.dim())]
    return min((10 * torch.log10(of / noise)).nan_to_num(math.inf)[of > 0].min().item() for of, noise in lines)


def check_padding():
    counts, multiple = [3, 0, 16, 17, 0], 16
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    rows = torch.arange(1.0, 1 + sum(counts))[:, None].repeat(1, 4).requires_grad_()
    seen = []

    def times_group(padded, padded_ends):
        seen.append((padded, padded_ends.tolist()))
        group = torch.searchsorted(padded_ends, torch.arange(len(padded), dtype=torch.int32), right=True)
        return padded * (1.0 + group)[:, None]

    result = alignment.aligned(rows, ends, multiple, times_group)
    padded, padded_ends = seen[0]
    assert padded_ends == [16, 32, 48, 80, 96] and len(padded) == 128, (padded_ends, len(padded))
    expected = torch.zeros(128)
    first = 0
    for count, end in zip(counts, [0, *padded_ends]):
        expected[end : end + count] = torch.arange(first + 1.0, first + count + 1)
        first += count
    assert torch.equal(padded[:, 0].detach(), expected)
    factor = torch.repeat_interleave(1.0 + torch.arange(5), torch.tensor(counts))[:, None]
    assert torch.equal(result, rows * factor)
    result.sum().backward()
    assert torch.equal(rows.grad, factor.expand_as(rows))


def by_blocks(x, axis):
    """x with a scale for each 32 values along an axis, rounded up to a power of two, in E4M3 (the host's, in double)."""
    blocks = x.double().movedim(axis, -1).unflatten(-1, (-1, 32))
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 448)))
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return ((blocks / scale).float().to(torch.float8_e4m3fn).double() * scale).flatten(-2).movedim(-1, axis)


def by_rows(x, axis):
    """x with one scale along an axis, the largest power of two that overflows nothing, in E4M3."""
    scale = torch.exp2(torch.floor(torch.log2(448 / x.double().abs().amax(axis, keepdim=True).clamp(min=1e-12))))
    return (x.double() * scale).float().to(torch.float8_e4m3fn).double() / scale


def by_tensor(x, axis):
    scale = 448 / x.double().abs().max()
    return (x.double() * scale).float().to(torch.float8_e4m3fn).double() / scale


def turned(cast):
    """The cast along the other axis."""
    return lambda x, axis: cast(x, x.dim() - 2 if axis == x.dim() - 1 else x.dim() - 1)


def defined(rows, weight, ends, gradient, cast):
    """The output, and the gradients of rows and weight: every operand is cast along the axis that the product sums."""
    output, of_rows, of_weight = [], [], []
    for begin, end, matrix in zip([0, *ends[:-1]], ends, weight, strict=True):
        own, back = rows[begin:end], gradient[begin:end]
        output.append(cast(own, 1) @ cast(matrix, 1).T)
        of_rows.append(cast(back, 1) @ cast(matrix, 0))
        of_weight.append(cast(back, 0).T @ cast(own, 0))
    return torch.cat(output), torch.cat(of_rows), torch.stack(of_weight)


def uneven(*shape, generator):
    """Normal values of rows that differ so much in size that a scale of several rows makes zeros of the smallest."""
    sizes = torch.exp2(torch.randint(-12, 13, (*shape[:-1], 1), generator=generator).float())
    return (torch.randn(*shape, generator=generator) * sizes).to(torch.bfloat16)


def make(cell, device):
    subject = subjects.load("torchao").make(cell, device)
    built = subject.make_model()
    subject.fill(built)
    return subject, built


def check_products(recipe, device, cast):
    _, built = make(cell_of(training__recipe=recipe), device)
    module, generator = built.layers[1].mlp.fc1, torch.Generator().manual_seed(1)
    outputs, inputs = module.weight.shape[1:]
    ends = [32, 64, 160, 192, 256, 288]
    rows, gradient = uneven(ends[-1], inputs, generator=generator), uneven(ends[-1], outputs, generator=generator)
    weight = uneven(6, outputs, inputs, generator=generator)
    with torch.no_grad():
        module.weight.copy_(weight)
    x = rows.to(device).requires_grad_()
    y = module(x, torch.tensor(ends, dtype=torch.int32, device=device))
    y.backward(gradient.to(device))
    got = y.detach(), x.grad, module.weight.grad
    lost = weight.clone()
    lost[4] = 0
    for name, of, expected in zip(("output", "gradient of rows", "gradient of weights"), got,
                                  defined(rows, weight, ends, gradient, cast), strict=True):  # fmt: skip
        found = least_sqnr(of, expected)
        assert found > EXACT, f"{recipe}, {name}: {found} dB from its definition"
    for other, matrices in ((turned(cast), weight), (by_tensor, weight), (cast, lost)):
        found = least_sqnr(got[0], defined(rows, matrices, ends, gradient, other)[0])
        assert found < OTHER_CASTS, f"{recipe}: another definition is {found} dB away"


def check_conversion(recipe, wrapper, linear, multiple):
    from torchao.prototype.moe_training import tensor

    # Nothing is computed, so the host has FP8 too.
    built = subjects.load("torchao").make(cell_of(training__recipe=recipe), torch.device("cpu")).make_model()
    kinds = {}
    for name, module in built.named_modules():
        if isinstance(module, (torch.nn.Linear, experts.ExpertWeights)):
            kinds.setdefault((type(module).__name__, type(module.weight.data).__name__), set()).add(name)
    dense = {"layers.0.attention.qkv.core", "layers.0.attention.proj", "layers.0.mlp.fc1", "layers.0.mlp.fc2"}
    dense |= {"layers.1.attention.qkv.core", "layers.1.attention.proj", "layers.1.mlp.shared_fc1", "layers.1.mlp.shared_fc2"}
    expected = {
        (linear, "Tensor"): dense,
        ("Linear", "Tensor"): {"layers.1.mlp.router"},
        ("ExpertWeights", wrapper): {"layers.1.mlp.fc1", "layers.1.mlp.fc2"},
    }
    assert kinds == expected, kinds
    weights = [one for one in built.parameters() if isinstance(one.data, tensor.TrainingWeightWrapperBaseTensor)]
    assert len(weights) == 2 and not any(one.config.pad_token_groups_for_grouped_mm for one in weights)
    assert built.layers[1].mlp.row_multiple == multiple
    plain = subjects.load("torchao").make(cell_of("bf16", training__recipe=recipe), torch.device("cpu")).make_model()
    assert plain.layers[1].mlp.row_multiple == 1 and type(plain.layers[1].mlp.fc1.weight.data) is torch.Tensor


def passed(cell, device, change=None):
    """Output and gradients of one mixture; `change`d if a defect is planted."""
    subject, built = make(cell, device)
    if change:
        change(built.layers[0])
    x = torch.randn(cell.tokens, cell["model.hidden"], generator=torch.Generator().manual_seed(7))
    x = x.to(device, torch.bfloat16).requires_grad_()
    y = subject.forward(built, x)
    (y.float() * torch.linspace(-1, 1, y.numel(), device=device).view_as(y)).sum().backward()
    return [y.detach(), x.grad, *(one.grad for one in built.parameters())]


def lose_an_expert(mixture):
    run = mixture.run_groups

    def without_third(rows, ends):
        kept = torch.ones(len(rows), 1, dtype=rows.dtype, device=rows.device)
        kept[ends[1] : ends[2]] = 0
        return run(rows, ends) * kept

    mixture.run_groups = without_third


def check_mixture(recipe, device):
    keys = {"model__layer": "layernorm_mlp", "model__layers": 1, "model__dense_layers": 0, "training__recipe": recipe}
    expected = passed(cell_of("bf16", **keys), device)
    found = [sqnr(*pair) for pair in zip(passed(cell_of(**keys), device), expected, strict=True)]
    assert min(found) > GATE, f"{recipe}: {found} dB from BF16"
    lost = [sqnr(*pair) for pair in zip(passed(cell_of(**keys), device, lose_an_expert), expected, strict=True)]
    # One of six experts has about a sixth of the gradient's energy.
    assert min(lost) < 10 * math.log10(6) + 3 < GATE, f"{recipe}: a lost expert leaves {lost} dB"


def check_refusals():
    known = abilities.version_of
    for versions, key in (
        ({"torchao": "0.17.0", "torch": "2.15.0"}, "model.top_k"), ({"torchao": "0.18.0", "torch": "2.14.0"}, "model.top_k"),
        ({"torchao": "0.18.0", "torch": "2.15.0"}, ""),
    ):  # fmt: skip
        abilities.version_of = versions.get
        assert abilities.needs_newer(cell_of(training__recipe="mxfp8")).partition(":")[0] == key, versions
        assert not abilities.needs_newer(cell_of("bf16", training__recipe="mxfp8"))
    abilities.version_of = {"torchao": "0.18.0", "torch": "2.11.0"}.get
    assert not abilities.needs_newer(cell_of(training__recipe="current"))
    abilities.version_of = known
    for keys, key in (({"ranks": 2}, ""), ({"ranks": 4}, "model.experts"), ({"ranks": 2, "expert_parallel": 2}, ""),
                      ({"ranks": 6, "mesh": "2x3"}, ""), ({"ranks": 4, "expert_parallel": 2}, "model.experts")):  # fmt: skip
        assert abilities.shares_experts_unevenly(cell_of(training__recipe="mxfp8", **keys)).partition(":")[0] == key, keys


def main():
    check_padding()
    check_refusals()
    if importlib.util.find_spec("torchao") is None:
        return
    host = torch.device("cpu")
    check_conversion("current", "Float8TrainingWeightWrapperTensor", "Float8Linear", 16)
    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
        check_products("current", torch.device("cuda"), by_rows)
        check_mixture("current", torch.device("cuda"))
    if not abilities.needs_newer(cell_of(training__recipe="mxfp8")):
        check_conversion("mxfp8", "MXFP8TrainingWeightWrapperTensor", "MXFP8Linear", 32)
        check_products("mxfp8", host, by_blocks)
        check_mixture("mxfp8", host)


if __name__ == "__main__":
    main()
