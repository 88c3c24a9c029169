#!/usr/bin/env python3
"""PyTorch's matrix products, under the row names of bench_gemm and in Google Benchmark's JSON.

Usage: gemm.py [--rounds N] [--filter TEXT] [--out FILE]

BF16 rows are torch.matmul of views with the layouts of a linear layer. fp8_tensor rows are torch._scaled_mm with
per-tensor scales and fast accumulation in forward only. fp8_tensor_to_fp8 rows are the same with a result in FP8 under
a given scale; torch does not measure its amax. Rounds alternate the rows. Inputs are normally distributed and rotate
past the L2. Events time a call after a large copy that hides its launch. Results are medians.
"""

import statistics
import sys

import torch

import peer

TOKENS = 8192
PAST_THE_L2 = 192 << 20
LAYERS = (("qkv", 6144, 4096), ("proj", 4096, 4096), ("fc1", 28672, 4096), ("fc2", 4096, 14336))


def products():
    """(name, m, n, k, pass) of every row."""
    yield "4096", 4096, 4096, 4096, "fprop"
    yield "8192", 8192, 8192, 8192, "fprop"
    for layer, out, inner in LAYERS:
        yield f"llama_8b/{layer}/fprop", TOKENS, out, inner, "fprop"
        yield f"llama_8b/{layer}/dgrad", TOKENS, inner, out, "dgrad"
        yield f"llama_8b/{layer}/wgrad", out, inner, TOKENS, "wgrad"


def random(rows, cols):
    return torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)


def rotations(size):
    return min(64, max(1, PAST_THE_L2 // size + 1))


def bf16_calls(m, n, k, which):
    """Products over k of a [m, k] and b [n, k], in the layouts that forward stored."""
    def operands():
        a = random(k, m).t() if which == "wgrad" else random(m, k)
        b = random(n, k).t() if which == "fprop" else random(k, n)
        return a, b

    sets = [operands() for _ in range(rotations((m + n) * k * 2))]
    return [lambda a=a, b=b: torch.matmul(a, b) for a, b in sets]


def quantized(rows, cols, dtype):
    x = random(rows, cols)
    scale = torch.finfo(dtype).max / x.abs().max().float()
    return (x.float() * scale).to(dtype), scale.reciprocal()


def fp8_calls(m, n, k, which):
    """Calls with a BF16 result, and calls on the same operands with a result of the type of `a`."""
    dtype = torch.float8_e4m3fn if which == "fprop" else torch.float8_e5m2

    def operands():
        a, scale_a = quantized(m, k, dtype)
        b, scale_b = quantized(n, k, torch.float8_e4m3fn)
        return a, b.t(), scale_a, scale_b

    one = torch.ones((), device="cuda")
    sets = [operands() for _ in range(rotations((m + n) * k))]

    def calls(**result):
        return [lambda a=a, b=b, sa=sa, sb=sb: torch._scaled_mm(a, b, sa, sb, use_fast_accum=which == "fprop", **result)
                for a, b, sa, sb in sets]

    return calls(out_dtype=torch.bfloat16), calls(out_dtype=dtype, scale_result=one)


def main():
    options = peer.arguments(__doc__, rounds=30).parse_args()
    torch.manual_seed(1)
    timer = peer.Timer()
    rows = []
    for name, m, n, k, which in products():
        if options.filter not in name:
            continue
        to_bf16, to_fp8 = fp8_calls(m, n, k, which)
        kinds = {"bf16": bf16_calls(m, n, k, which), "fp8_tensor": to_bf16}
        if which != "wgrad":
            kinds["fp8_tensor_to_fp8"] = to_fp8
        times = {kind: [] for kind in kinds}
        for index in range(3 + options.rounds):
            for kind, calls in kinds.items():
                microseconds, _ = timer.microseconds(calls[index % len(calls)])
                if index >= 3:
                    times[kind].append(microseconds)
        for kind, samples in times.items():
            median = statistics.median(samples)
            flops = 2e6 * m * n * k / median
            rows.append(peer.row(f"gemm/{name}/{kind}", options.rounds, median, flops=flops))
            print(f"gemm/{name}/{kind:24} {median:10.1f} us {flops / 1e12:8.1f} TFLOP/s", file=sys.stderr)
    peer.write(rows, options.out)


if __name__ == "__main__":
    main()
