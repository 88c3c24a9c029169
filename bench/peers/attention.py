#!/usr/bin/env python3
"""Torch's scaled_dot_product_attention, by cuDNN or by its own flash kernels, in rows with the names of
bench_attention.

Writes Google Benchmark's JSON, to standard output without --out. Torch has no attention in FP8. Its gradients are the
rows `backward_any_order`; they are also the rows `backward` if torch, with deterministic algorithms on, gives equal
bits on every run. Grouped queries stay grouped in torch too.
"""

import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import peer

HEAD_DIM, WARM_UP, REPEATS = 128, 3, 5
# Name, batch, heads, heads of keys and values, sequence, causal; the same as in bench_attention.
CASES = (
    ("8x32h/s2048/causal", 8, 32, 32, 2048, True),
    ("2x32h/s8192/causal", 2, 32, 32, 8192, True),
    ("2x32h/s8192/full", 2, 32, 32, 8192, False),
    ("llama_8b/s4096/causal", 2, 32, 8, 4096, True),
)
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def rows(options, timer, name, batch, heads, kv_heads, seq, causal):
    def operand(count):
        return torch.randn(batch, seq, count, HEAD_DIM, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()

    q, k, v = operand(heads), operand(kv_heads), operand(kv_heads)
    entries = batch * heads * seq * seq * (0.5 if causal else 1.0)

    def attend():
        with sdpa_kernel(BACKENDS[options.backend]):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv_heads != heads)

    try:
        out = attend()
    except RuntimeError as error:
        print(f"{name}: {options.backend}: {error}", file=sys.stderr)
        return
    grad = torch.randn_like(out)

    def row(direction, products, call):
        samples = [timer.microseconds(call)[0] for _ in range(WARM_UP + options.rounds)][WARM_UP:]
        median = statistics.median(samples)
        flops = 2e6 * products * entries * HEAD_DIM / median
        return peer.row(f"attention/{name}/bf16/{direction}", options.rounds, median, flops=flops)

    yield row("forward", 2, attend)
    def gradients():
        return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    yield row("backward_any_order", 5, gradients)
    torch.use_deterministic_algorithms(True)
    try:
        first, *others = (gradients() for _ in range(REPEATS))
        if all(torch.equal(x, y) for other in others for x, y in zip(first, other)):
            yield row("backward", 5, gradients)
        else:
            print(f"{name}: {options.backend}: gradients differ between runs, so there is no row of deterministic ones", file=sys.stderr)
    except RuntimeError as error:
        print(f"{name}: {options.backend}: {error}", file=sys.stderr)
    torch.use_deterministic_algorithms(False)


def main():
    parser = peer.arguments(__doc__, rounds=11)
    parser.add_argument("--backend", choices=BACKENDS, default="cudnn", help="which of torch's kernels (default: %(default)s)")
    options = parser.parse_args()
    timer = peer.Timer()
    found = []
    for name, *case in CASES:
        if options.filter in name:
            found += rows(options, timer, name, *case)
    peer.write(found, options.out)


if __name__ == "__main__":
    main()
