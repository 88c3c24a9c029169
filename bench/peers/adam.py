#!/usr/bin/env python3
"""What torch needs for a step of AdamW over 24 matrices of 4096 x 4096, in rows named as those of bench_adam_card.

Writes Google Benchmark's JSON, to standard output without --out. Torch's fused AdamW wants gradients of
its parameters' type, so FP8 rows step FP32 masters with FP32 gradients, find amaxes with one list operation and cast matrix by matrix,
through BF16 as the weights' nominal type asks.
"""

import argparse
import json
import statistics
import sys

import torch

SIDE, TENSORS, ROUNDS = 4096, 24, 11
PARAMETERS = TENSORS * SIDE * SIDE
E4M3_MAX = 448.0


def matrices(dtype):
    return [torch.randn(SIDE, SIDE, device="cuda", dtype=dtype) for _ in range(TENSORS)]


def adamw(dtype):
    parameters = [torch.nn.Parameter(values) for values in matrices(dtype)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters, torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def plain(dtype):
    _, optimizer = adamw(dtype)
    return optimizer.step


def cast_into(codes, scales, rounded):
    for code, scale, values in zip(codes, scales, rounded):
        code.copy_((values.float() * scale).clamp_(-E4M3_MAX, E4M3_MAX))


def delayed():
    masters, optimizer = adamw(torch.float32)
    codes = [torch.empty(SIDE, SIDE, device="cuda", dtype=torch.float8_e4m3fn) for _ in masters]
    scales = [torch.full((), 64.0, device="cuda") for _ in masters]
    amaxes = [torch.zeros((), device="cuda") for _ in masters]

    def step():
        optimizer.step()
        with torch.no_grad():
            rounded = [master.to(torch.bfloat16) for master in masters]
            torch._foreach_maximum_(amaxes, [norm.float() for norm in torch._foreach_norm(rounded, float("inf"))])
            cast_into(codes, scales, rounded)

    return step


def current():
    masters, optimizer = adamw(torch.float32)
    codes = [torch.empty(SIDE, SIDE, device="cuda", dtype=torch.float8_e4m3fn) for _ in masters]

    def step():
        optimizer.step()
        with torch.no_grad():
            rounded = [master.to(torch.bfloat16) for master in masters]
            amaxes = torch._foreach_norm(rounded, float("inf"))
            cast_into(codes, [E4M3_MAX / amax.float() for amax in amaxes], rounded)

    return step


def foreach_norm():
    gradients = matrices(torch.bfloat16)
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


# Name, bytes a parameter as bench_adam_card counts them, what makes the step.
ROWS = (
    ("adam/f32", 28, lambda: plain(torch.float32)),
    ("adam/fp8_delayed/f32_master", 27, delayed),
    ("adam/fp8_current/f32_master", 27, current),
    ("gradient_norm/bf16", 2, foreach_norm),
)


def seconds_of(work):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def measure(name, bytes_each, make):
    step = make()
    source, target = (torch.empty(1 << 30, device="cuda", dtype=torch.uint8) for _ in range(2))
    for _ in range(3):
        step()
    times, copies = [], []
    for _ in range(ROUNDS):
        copies.append(seconds_of(lambda: target.copy_(source)))
        times.append(seconds_of(step))
    seconds, copy = statistics.median(times), 2 * source.numel() / statistics.median(copies)
    bandwidth = bytes_each * PARAMETERS / seconds
    full_name = f"{name}/iterations:{ROUNDS}/manual_time"
    return {
        "name": full_name, "run_name": full_name, "run_type": "iteration", "iterations": ROUNDS,
        "real_time": 1e6 * seconds, "cpu_time": 1e6 * seconds, "time_unit": "us",
        "p50_us": 1e6 * seconds, "bytes_per_second": bandwidth, "copy_bytes_per_second": copy, "of_copy": bandwidth / copy,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    options = parser.parse_args()
    results = []
    for name, bytes_each, make in ROWS:
        results.append(measure(name, bytes_each, make))
        torch.cuda.empty_cache()
    report = {
        "context": {"executable": "bench/peers/adam.py", "torch": torch.__version__, "card": torch.cuda.get_device_name()},
        "benchmarks": results,
    }
    with (open(options.out, "w", encoding="utf-8") if options.out else sys.stdout) as out:
        json.dump(report, out, indent=1)


if __name__ == "__main__":
    main()
