#!/usr/bin/env python3
"""PyTorch's memory-bound operations, under the row names of bench_elementwise and in Google Benchmark's JSON.

Usage: elementwise.py [--rounds N] [--filter TEXT] [--compile] [--out FILE]

Each row is PyTorch's counterpart: rms_norm, layer_norm, silu(gate) * up, gelu(tanh) and their autograd backward; norms
and activations followed by a cast to E4M3 with a given scale, and its amax; transposes by contiguous(); a rotary
embedding with sines and cosines computed beforehand; cross-entropy of logits cast to FP32, as under autocast; token
embedding and its gradient. --compile times them through torch.compile. Inputs are normally
distributed and rotate past the L2. Events time a call after a large copy that hides its launches. Results are medians,
and of_copy, the ratio to the bandwidth of that copy.
"""

import statistics
import sys
from functools import partial

import torch
import torch.nn.functional as functional

import peer

TOKENS, HIDDEN, FFN, VOCABULARY = 8192, 4096, 14336, 128256
PAST_THE_L2 = 192 << 20
TYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn}


def random(rows, cols, dtype):
    return torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16).to(dtype)


def rotations(size, make):
    return [make() for _ in range(min(64, max(1, PAST_THE_L2 // size + 1)))]


def swiglu(x):
    gate, up = x.chunk(2, dim=1)
    return functional.silu(gate) * up


def gelu(x):
    return functional.gelu(x, approximate="tanh")


def rotate(x, cosine, sine):
    low, high = x.view(TOKENS, 32, 2, 64).unbind(2)
    return torch.stack((low * cosine - high * sine, high * cosine + low * sine), 2).view(TOKENS, HIDDEN)


def quantized(function, both):
    """`function`, then a cast with a given scale and the recorded amax, as in a delayed recipe."""
    def call(x, *weights):
        y = function(x, *weights)
        data = (y.float() * 64.0).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        return y.abs().amax(), data, data.view(torch.uint8).t().contiguous() if both else None

    return call


def forward_row(function, dtype, cols, moved, parameters=0, wrap=lambda f: f):
    call = wrap(function)
    weights = [torch.randn(cols, device="cuda", dtype=dtype) for _ in range(parameters)]
    xs = rotations(TOKENS * cols * dtype.itemsize, lambda: random(TOKENS, cols, dtype))
    return moved, [lambda x=x: call(x, *weights) for x in xs]


def backward_row(function, dtype, cols, out_cols, moved, parameters=0, wrap=lambda f: f):
    call = wrap(function)
    weights = [torch.randn(cols, device="cuda", dtype=dtype, requires_grad=True) for _ in range(parameters)]

    def make():
        x = random(TOKENS, cols, dtype).requires_grad_()
        y, grad = call(x, *weights), random(TOKENS, out_cols, dtype)
        return lambda: torch.autograd.grad(y, [x, *weights], grad, retain_graph=True)

    return moved, rotations(2 * TOKENS * cols * dtype.itemsize, make)


def rows(wrap):
    """By name, a function that returns (bytes moved, calls)."""
    table = {}
    norms = {"rms_norm": (lambda x, g: functional.rms_norm(x, (x.shape[1],), g, 1e-5), 1),
             "layer_norm": (lambda x, g, b: functional.layer_norm(x, (x.shape[1],), g, b, 1e-5), 2)}
    for label, (function, parameters) in norms.items():
        for cols, kind in ((4096, "bf16"), (4096, "f32"), (8192, "bf16"), (16384, "bf16")):
            dtype, size, shape = TYPES[kind], TOKENS * cols * TYPES[kind].itemsize, f"{TOKENS}x{cols}/{kind}"
            table[f"{label}/forward/{shape}"] = partial(forward_row, function, dtype, cols, 2 * size, parameters, wrap)
            table[f"{label}/backward/{shape}"] = partial(backward_row, function, dtype, cols, cols, 3 * size, parameters, wrap)
    one, bf16 = TOKENS * FFN * 2, torch.bfloat16
    for label, function, wide in (("swiglu", swiglu, 2), ("gelu", gelu, 1)):
        shape, cols = f"{TOKENS}x{FFN}/bf16", wide * FFN
        table[f"{label}/forward/{shape}"] = partial(forward_row, function, bf16, cols, (wide + 1) * one, 0, wrap)
        table[f"{label}/backward/{shape}"] = partial(backward_row, function, bf16, cols, FFN, (2 * wide + 1) * one, 0, wrap)
    for direction, both in (("rowwise", False), ("both", True)):
        written = 2 if both else 1
        table[f"rms_norm_quantize/delayed/{direction}/{TOKENS}x{HIDDEN}/bf16"] = partial(
            forward_row, quantized(norms["rms_norm"][0], both), bf16, HIDDEN, (2 + written) * TOKENS * HIDDEN, 1, wrap)
        table[f"swiglu_quantize/delayed/{direction}/{TOKENS}x{FFN}/bf16"] = partial(
            forward_row, quantized(swiglu, both), bf16, 2 * FFN, (4 + written) * TOKENS * FFN, 0, wrap)
    for kind in ("e4m3", "bf16"):
        for cols in (HIDDEN, FFN):
            # As bytes, because PyTorch moves those faster than FP8.
            dtype = torch.uint8 if kind == "e4m3" else torch.bfloat16
            make = lambda cols=cols, dtype=dtype: random(TOKENS, cols, torch.bfloat16).to(dtype)
            size = TOKENS * cols * dtype.itemsize
            table[f"transpose/{TOKENS}x{cols}/{kind}"] = lambda make=make, size=size: (
                2 * size, [lambda x=x: wrap(lambda t: t.t().contiguous())(x) for x in rotations(size, make)])
    for source, target in (("f32", "bf16"), ("bf16", "f32")):
        size = TOKENS * HIDDEN
        table[f"cast/{TOKENS}x{HIDDEN}/{source}_{target}"] = lambda s=source, t=target, size=size: (
            6 * size, [lambda x=x: x.to(TYPES[t]) for x in rotations(4 * size, lambda: random(TOKENS, HIDDEN, TYPES[s]))])
    size, shape = TOKENS * HIDDEN * 2, f"{TOKENS}x{HIDDEN}/bf16"
    xs = lambda: rotations(size, lambda: random(TOKENS, HIDDEN, torch.bfloat16))
    table[f"add/{shape}"] = lambda: (3 * size, [lambda a=a, b=b: a + b for a, b in zip(xs(), xs())])
    table[f"column_sum/{shape}"] = lambda: (size, [lambda x=x: x.sum(0) for x in xs()])

    def rope():
        angles = torch.rand(TOKENS, 1, 64, device="cuda") * 6.28
        cosine, sine, call = angles.cos().bfloat16(), angles.sin().bfloat16(), wrap(rotate)
        return 2 * size, [lambda x=x: call(x, cosine, sine) for x in xs()]

    table[f"rope/{shape}"] = rope

    def cross_entropy(backward):
        logits = random(TOKENS, VOCABULARY, torch.bfloat16).requires_grad_(backward)
        targets = torch.randint(VOCABULARY, (TOKENS,), device="cuda")
        call, moved = wrap(lambda x: functional.cross_entropy(x.float(), targets)), 2 * TOKENS * VOCABULARY
        if not backward:
            return moved, [lambda: call(logits)]
        loss = call(logits)
        return 2 * moved, [lambda: torch.autograd.grad(loss, logits, retain_graph=True)]

    def embedding(backward):
        weights = random(VOCABULARY, HIDDEN, torch.bfloat16).requires_grad_(backward)
        tokens = torch.randint(VOCABULARY, (TOKENS,), device="cuda")
        call = wrap(lambda x: functional.embedding(tokens, x))
        if not backward:
            return 2 * size, [lambda: call(weights)]
        y = call(weights)
        return size + 2 * VOCABULARY * HIDDEN, [lambda x=x: torch.autograd.grad(y, weights, x, retain_graph=True) for x in xs()]

    for backward in (False, True):
        which = "backward" if backward else "forward"
        table[f"cross_entropy/{which}/{TOKENS}x{VOCABULARY}/bf16"] = partial(cross_entropy, backward)
        table[f"embedding/{which}/{shape}"] = partial(embedding, backward)
    table[f"dropout/{shape}"] = lambda: (2 * size, [lambda x=x: functional.dropout(x, 0.1) for x in xs()])
    return table


def main():
    parser = peer.arguments(__doc__, rounds=30)
    parser.add_argument("--compile", action="store_true", help="time what torch.compile makes of each")
    options = parser.parse_args()
    torch.manual_seed(1)
    timer = peer.Timer()
    results = []
    for name, make in rows(torch.compile if options.compile else lambda f: f).items():
        if options.filter not in name:
            continue
        moved, calls = make()
        for i in range(3):
            calls[i % len(calls)]()
        samples = [timer.microseconds(calls[i % len(calls)]) for i in range(options.rounds)]
        median, copy = (statistics.median(column) for column in zip(*samples))
        bandwidth = 1e6 * moved / median
        of_copy = bandwidth / timer.copy_bandwidth(copy)
        results.append(peer.row(name, options.rounds, median, bytes_per_second=bandwidth, of_copy=of_copy))
        print(f"{name:48} {median:9.1f} us {bandwidth / 1e12:6.2f} TB/s {of_copy:6.3f} of copy", file=sys.stderr)
    peer.write(results, options.out)


if __name__ == "__main__":
    main()
