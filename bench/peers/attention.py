#!/usr/bin/env python3
"""Torch's scaled_dot_product_attention, through cuDNN and through its own flash kernels, in rows named as those of bench_attention.

Writes Google Benchmark's JSON, to standard output without --out. Torch has no attention in FP8; its
gradients are not deterministic. Grouped queries are grouped there too.
"""

import argparse
import json
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HEAD_DIM, ROUNDS, WARM_UP = 128, 11, 3
# Name, batch, heads, heads of keys and values, sequence, causal: as bench_attention has them.
CASES = (
    ("8x32h/s2048/causal", 8, 32, 32, 2048, True),
    ("2x32h/s8192/causal", 2, 32, 32, 8192, True),
    ("2x32h/s8192/full", 2, 32, 32, 8192, False),
    ("llama_8b/s4096/causal", 2, 32, 8, 4096, True),
)
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def seconds(work):
    """The median over rounds, by events."""
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def row(name, products, entries, time):
    return {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "iterations": ROUNDS,
        "real_time": 1e6 * time,
        "cpu_time": 1e6 * time,
        "time_unit": "us",
        "p50_us": 1e6 * time,
        "flops": 2 * products * entries * HEAD_DIM / time,
    }


def rows(backend, name, batch, heads, kv_heads, seq, causal):
    def operand(count):
        return torch.randn(batch, seq, count, HEAD_DIM, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()

    q, k, v = operand(heads), operand(kv_heads), operand(kv_heads)
    entries = batch * heads * seq * seq * (0.5 if causal else 1.0)

    def attend():
        with sdpa_kernel(BACKENDS[backend]):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=kv_heads != heads)

    try:
        out = attend()
    except RuntimeError as error:
        print(f"{name}: {backend}: {error}", file=sys.stderr)
        return
    grad = torch.randn_like(out)
    yield row(f"attention/{name}/bf16/forward", 2, entries, seconds(attend))
    yield row(f"attention/{name}/bf16/backward", 5, entries,
              seconds(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, default="cudnn")
    parser.add_argument("--out")
    options = parser.parse_args()
    report = {
        "context": {
            "library": f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}",
            "device": torch.cuda.get_device_name(),
        },
        "benchmarks": [one for case in CASES for one in rows(options.backend, *case)],
    }
    with (open(options.out, "w", encoding="utf-8") if options.out else sys.stdout) as out:
        json.dump(report, out, indent=1)


if __name__ == "__main__":
    main()
