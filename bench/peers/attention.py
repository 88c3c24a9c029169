#!/usr/bin/env python3
"""Torch's scaled_dot_product_attention, by cuDNN or by its own flash kernels, in rows with the names of
bench_attention.

Writes Google Benchmark's JSON, to standard output without --out. Torch has no attention in FP8. Its gradients are the
rows `backward_any_order`; they are also the rows `backward` if torch, with deterministic algorithms on, gives equal
bits on every run. Grouped queries stay grouped in torch too. Torch has no windows and no sinks in these kernels.
"""

import statistics
import sys
import typing

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import peer

WARM_UP, REPEATS = 3, 5


class Case(typing.NamedTuple):
    """A shape of bench_attention, with its name."""

    name: str
    batch: int
    heads: int
    kv_heads: int
    seq: int
    causal: bool = True
    key_dim: int = 128
    value_dim: int = 128
    window: int = 0  # the most keys that a query sees, its own included; 0: no limit
    sinks: bool = False

    def flops(self, of_keys, of_values):
        """The operations of `of_keys` products with the columns of a key and `of_values` with the columns of a value."""
        entries = self.window * (self.seq - self.window / 2) if self.window else self.seq**2 * (0.5 if self.causal else 1.0)
        return 2.0 * (of_keys * self.key_dim + of_values * self.value_dim) * self.batch * self.heads * entries


CASES = (
    Case("8x32h/s2048/causal", 8, 32, 32, 2048),
    Case("2x32h/s8192/causal", 2, 32, 32, 8192),
    Case("2x32h/s8192/full", 2, 32, 32, 8192, causal=False),
    Case("llama_8b/s4096/causal", 2, 32, 8, 4096),
    Case("mistral_7b/s8192/window4096", 2, 32, 8, 8192, window=4096),
    Case("gpt_oss/s8192/causal", 2, 64, 8, 8192, key_dim=64, value_dim=64, sinks=True),
    Case("gpt_oss/s8192/window128", 2, 64, 8, 8192, key_dim=64, value_dim=64, window=128, sinks=True),
    Case("deepseek_v3/s4096/causal", 1, 128, 128, 4096, key_dim=192),
)
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def rows(options, timer, case):
    def operand(count, dim):
        return torch.randn(case.batch, case.seq, count, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()

    name = case.name
    q, k, v = operand(case.heads, case.key_dim), operand(case.kv_heads, case.key_dim), operand(case.kv_heads, case.value_dim)

    def attend():
        with sdpa_kernel(BACKENDS[options.backend]):
            return scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=case.kv_heads != case.heads)

    try:
        out = attend()
    except RuntimeError as error:
        print(f"{name}: {options.backend}: {error}", file=sys.stderr)
        return
    grad = torch.randn_like(out)

    def row(direction, of_keys, of_values, call):
        samples = [timer.microseconds(call)[0] for _ in range(WARM_UP + options.rounds)][WARM_UP:]
        median = statistics.median(samples)
        flops = 1e6 * case.flops(of_keys, of_values) / median
        return peer.row(f"attention/{name}/bf16/{direction}", options.rounds, median, flops=flops)

    yield row("forward", 1, 1, attend)
    def gradients():
        return torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    yield row("backward_any_order", 3, 2, gradients)
    torch.use_deterministic_algorithms(True)
    try:
        first, *others = (gradients() for _ in range(REPEATS))
        if all(torch.equal(x, y) for other in others for x, y in zip(first, other)):
            yield row("backward", 3, 2, gradients)
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
    for case in CASES:
        if options.filter in case.name and not case.window and not case.sinks:
            found += rows(options, timer, case)
    peer.write(found, options.out)


if __name__ == "__main__":
    main()
