#!/usr/bin/env python3
"""Delayed and current scaling in torch, under the row names of bench_quantize_card and in Google Benchmark's JSON.

Usage: quantize.py [--rounds N] [--filter TEXT] [--out FILE]

Each row is there twice: as eager operations and, with /compiled behind its name, as torch.compile fuses them. `both` adds the
transposed codes that the products of backward read. `cast` is the plain conversion, without scale or amax. Rounds go over inputs
that rotate past the L2, behind a large copy that hides the launch and is the measure of of_copy; medians are printed.
"""

import argparse
import json
import statistics
import sys

import torch

E4M3_MAX = 448.0
PAST_THE_L2 = 192 << 20
SIZES = ((16384, 8192), (8192, 4096), (8192, 14336))


def codes_of(x, scale):
    return (x.float() * scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def delayed(x, scale, amax):
    return codes_of(x, scale), torch.maximum(amax, x.abs().amax().float()), scale.reciprocal()


def delayed_both(x, scale, amax):
    codes, amax, inverse = delayed(x, scale, amax)
    return codes, codes.t().contiguous(), amax, inverse


def current(x, _scale, _amax):
    amax = x.abs().amax().float()
    scale = E4M3_MAX / amax
    return codes_of(x, scale), scale.reciprocal()


def current_both(x, scale, amax):
    codes, inverse = current(x, scale, amax)
    return codes, codes.t().contiguous(), inverse


def cast(x, _scale, _amax):
    return x.to(torch.float8_e4m3fn)


# Name, bytes an element that must move, what computes it.
ROWS = (("quantize/delayed/rowwise", 3, delayed), ("quantize/delayed/both", 4, delayed_both),
        ("quantize/current/rowwise", 5, current), ("quantize/current/both", 6, current_both), ("cast", 3, cast))


def copied_and_timed(call, source, target):
    """Microseconds of a large copy and of the call behind it."""
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    begin.record()
    target.copy_(source)
    middle.record()
    call()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(middle), 1e3 * middle.elapsed_time(end)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--filter", default="")
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.manual_seed(1)
    source, target = (torch.empty(1 << 29, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source.normal_()
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
                samples = [copied_and_timed(lambda: run(inputs[turn % sets], scale, amax), source, target)
                           for turn in range(3 + options.rounds)][3:]
                copies, works = (statistics.median(column) for column in zip(*samples))
                moved = bytes_each * tokens * features
                rows.append({"name": f"{full}/iterations:{options.rounds}/manual_time", "run_type": "iteration",
                             "iterations": options.rounds, "real_time": works, "cpu_time": works, "time_unit": "us",
                             "p50_us": works, "bytes_per_second": 1e6 * moved / works,
                             "of_copy": moved / works / (2.0 * source.nbytes / copies)})
                print(f"{full:56} {works:10.1f} us {rows[-1]['of_copy']:6.3f} of copy", file=sys.stderr)
    report = {"context": {"library": f"torch {torch.__version__}", "device": torch.cuda.get_device_name()},
              "benchmarks": rows}
    with (open(options.out, "w") if options.out else sys.stdout) as out:
        json.dump(report, out, indent=1)


if __name__ == "__main__":
    main()
