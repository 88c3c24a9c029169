#!/usr/bin/env python3
"""Delayed and current scaling in torch, under the row names of bench_quantize_gpu and in Google Benchmark's JSON.

Usage: quantize.py [--rounds N] [--filter TEXT] [--out FILE]

Each row exists twice: as eager operations and, with /compiled after its name, fused by torch.compile. `both` adds the
transposed data that the products of backward read. `cast` is the plain conversion, without scale or amax. Inputs rotate
past the L2. A large copy before each call hides its launch; of_copy is relative to its bandwidth. Results are medians.
"""

import statistics
import sys

import torch

import peer

E4M3_MAX = 448.0
PAST_THE_L2 = 192 << 20
SIZES = ((16384, 8192), (8192, 4096), (8192, 14336))


def data_of(x, scale):
    return (x.float() * scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def delayed(x, scale, amax):
    return data_of(x, scale), torch.maximum(amax, x.abs().amax().float()), scale.reciprocal()


def delayed_both(x, scale, amax):
    data, amax, inverse = delayed(x, scale, amax)
    return data, data.t().contiguous(), amax, inverse


def current(x, _scale, _amax):
    amax = x.abs().amax().float()
    scale = E4M3_MAX / amax
    return data_of(x, scale), scale.reciprocal()


def current_both(x, scale, amax):
    data, inverse = current(x, scale, amax)
    return data, data.t().contiguous(), inverse


def cast(x, _scale, _amax):
    return x.to(torch.float8_e4m3fn)


# Name, bytes per element that must move, and the function that computes the row.
ROWS = (("quantize/delayed/rowwise", 3, delayed), ("quantize/delayed/both", 4, delayed_both),
        ("quantize/current/rowwise", 5, current), ("quantize/current/both", 6, current_both), ("cast", 3, cast))


def main():
    options = peer.arguments(__doc__, rounds=31).parse_args()
    torch.manual_seed(1)
    timer = peer.Timer()
    scale, amax = torch.full((), 64.0, device="cuda"), torch.zeros((), device="cuda")
    rows = []
    for tokens, features in SIZES:
        sets = max(1, PAST_THE_L2 // (2 * tokens * features) + 1)
        inputs = [torch.randn(tokens, features, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        for name, bytes_each, function in ROWS:
            for suffix, run in (("", function), ("/compiled", torch.compile(function, dynamic=False))):
                full = f"{name}/{tokens}x{features}/bf16{suffix}"
                if options.filter not in full:
                    continue
                samples = [timer.microseconds(lambda: run(inputs[index % sets], scale, amax))
                           for index in range(3 + options.rounds)][3:]
                median, copy = (statistics.median(column) for column in zip(*samples))
                bandwidth = 1e6 * bytes_each * tokens * features / median
                of_copy = bandwidth / timer.copy_bandwidth(copy)
                rows.append(peer.row(full, options.rounds, median, bytes_per_second=bandwidth, of_copy=of_copy))
                print(f"{full:56} {median:10.1f} us {of_copy:6.3f} of copy", file=sys.stderr)
    peer.write(rows, options.out)


if __name__ == "__main__":
    main()
