#!/usr/bin/env python3
"""Torch's time for a step of AdamW over 24 matrices of 4096 x 4096, in rows with the names of bench_adam_gpu.

Writes Google Benchmark's JSON, to standard output without --out. Torch's fused AdamW requires gradients of the
parameters' type. FP8 rows therefore step FP32 masters with FP32 gradients, measure the amaxes with one list operation,
and cast one matrix after the other, through BF16, the weights' nominal type.
"""

import statistics

import torch

import peer

SIDE, TENSORS = 4096, 24
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


def cast_into(data, scales, rounded):
    for code, scale, values in zip(data, scales, rounded):
        code.copy_((values.float() * scale).clamp_(-E4M3_MAX, E4M3_MAX))


def delayed():
    masters, optimizer = adamw(torch.float32)
    data = [torch.empty(SIDE, SIDE, device="cuda", dtype=torch.float8_e4m3fn) for _ in masters]
    scales = [torch.full((), 64.0, device="cuda") for _ in masters]
    amaxes = [torch.zeros((), device="cuda") for _ in masters]

    def step():
        optimizer.step()
        with torch.no_grad():
            rounded = [master.to(torch.bfloat16) for master in masters]
            torch._foreach_maximum_(amaxes, [norm.float() for norm in torch._foreach_norm(rounded, float("inf"))])
            cast_into(data, scales, rounded)

    return step


def current():
    masters, optimizer = adamw(torch.float32)
    data = [torch.empty(SIDE, SIDE, device="cuda", dtype=torch.float8_e4m3fn) for _ in masters]

    def step():
        optimizer.step()
        with torch.no_grad():
            rounded = [master.to(torch.bfloat16) for master in masters]
            amaxes = torch._foreach_norm(rounded, float("inf"))
            cast_into(data, [E4M3_MAX / amax.float() for amax in amaxes], rounded)

    return step


def foreach_norm():
    gradients = matrices(torch.bfloat16)
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


# Name, bytes per parameter as bench_adam_gpu counts them, and the function that makes the step.
ROWS = (
    ("adam/f32", 28, lambda: plain(torch.float32)),
    ("adam/fp8_delayed/f32_master", 27, delayed),
    ("adam/fp8_current/f32_master", 27, current),
    ("gradient_norm/bf16", 2, foreach_norm),
)


def measure(options, timer, name, bytes_each, make):
    step = make()
    samples = [timer.microseconds(step) for _ in range(3 + options.rounds)][3:]
    median, copy = (statistics.median(column) for column in zip(*samples))
    bandwidth = 1e6 * bytes_each * PARAMETERS / median
    of_copy = bandwidth / timer.copy_bandwidth(copy)
    return peer.row(name, options.rounds, median, bytes_per_second=bandwidth, of_copy=of_copy)


def main():
    options = peer.arguments(__doc__, rounds=11).parse_args()
    timer = peer.Timer()
    results = []
    for name, bytes_each, make in ROWS:
        if options.filter not in name:
            continue
        results.append(measure(options, timer, name, bytes_each, make))
        torch.cuda.empty_cache()
    peer.write(results, options.out)


if __name__ == "__main__":
    main()
