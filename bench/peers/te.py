#!/usr/bin/env python3
"""Transformer Engine on the shapes of the own benchmarks, under their row names and in Google Benchmark's JSON.

Usage: te.py [--rounds N] [--filter TEXT] [--out FILE]

Rows of bench_layer (a TransformerLayer in the form of Llama-3 8B, `any_order` as the library runs by default), of
bench_attention (only its call of cuDNN; FP8 with given scales, results as its layers receive them), of
bench_quantize_gpu (casts by the recipes' quantizers), of bench_elementwise (norms and SwiGLU, also with casts) and of
bench_adam_gpu (FusedAdam). The library allocates results in every call, as the own rows do. Inputs rotate past the L2.
Events time a call after a large copy that hides its launches; steps of the layer run back to back, and the last one is
timed. Results are medians, and of_copy, the ratio to the bandwidth of that copy. A row that the installed release cannot
run is left out, with the reason on standard error.
"""

import statistics
import sys
import time

import torch
import transformer_engine
import transformer_engine.pytorch as te
import transformer_engine_torch as tex
from transformer_engine.common import recipe as recipes
from transformer_engine.pytorch.constants import TE_DType
from transformer_engine.pytorch.cpp_extensions.fused_attn import FusedAttnBackend, fused_attn_bwd, fused_attn_fwd
from transformer_engine.pytorch.optimizers import FusedAdam
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer

import attention as torch_attention
import peer

TOKENS, HIDDEN, FFN, HEADS, KV_HEADS, SEQ, BATCH = 8192, 4096, 14336, 32, 8, 4096, 2
PAST_THE_L2 = 192 << 20
SIZES = ((16384, 8192), (8192, 4096), (8192, 14336))
EPSILON, SIDE, TENSORS, STEPS_AT_ONCE = 1e-5, 4096, 24, 4
BF16, E4M3, E5M2 = TE_DType[torch.bfloat16], tex.DType.kFloat8E4M3, tex.DType.kFloat8E5M2

RECIPES = {
    "bf16": lambda: None,
    "delayed": recipes.DelayedScaling,
    "current": recipes.Float8CurrentScaling,
    "block": recipes.Float8BlockScaling,
    "delayed_fp8_attention": lambda: recipes.DelayedScaling(fp8_dpa=True),
}


def delayed(both):
    scale, amax = torch.full((1,), 64.0, device="cuda"), torch.zeros(1, device="cuda")
    return Float8Quantizer(scale, amax, E4M3, rowwise=True, columnwise=both)


def current(both):
    return Float8CurrentScalingQuantizer(E4M3, torch.device("cuda"), rowwise=True, columnwise=both)


def block(sides):
    return lambda both: Float8BlockQuantizer(E4M3, rowwise=True, columnwise=both, block_scaling_dim=sides)


# Name in bench_quantize_gpu, reads of the input, and the maker of its quantizer.
QUANTIZERS = (("delayed", 1, delayed), ("current", 2, current), ("block_1x128", 1, block(1)), ("block_128x128", 1, block(2)))


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def rotations(*shape):
    count = min(64, max(1, PAST_THE_L2 // (2 * shape[0] * shape[1]) + 1))
    return [random(*shape) for _ in range(count)]


def casts():
    """Names, and functions that return (bytes moved, calls)."""
    for rows, cols in SIZES:
        for name, reads, make in QUANTIZERS:
            for direction in ("rowwise", "both"):
                def row(rows=rows, cols=cols, reads=reads, make=make, both=direction == "both"):
                    quantizer = make(both)
                    return (2 * reads + 1 + both) * rows * cols, [lambda x=x: quantizer(x) for x in rotations(rows, cols)]

                yield f"quantize/{name}/{direction}/{rows}x{cols}/bf16", row


def elementwise():
    size, gamma = TOKENS * HIDDEN, random(HIDDEN)

    def norm(quantizer):
        return lambda x: tex.rmsnorm_fwd(x, gamma, EPSILON, None, quantizer, BF16, 0, False)

    def norm_row(quantizer, written):
        call = norm(quantizer)
        return (2 + written) * size, [lambda x=x: call(x) for x in rotations(TOKENS, HIDDEN)]

    def norm_backward_row():
        xs = rotations(TOKENS, HIDDEN)
        saved = [(x, norm(None)(x)[-1], random(TOKENS, HIDDEN)) for x in xs]
        return 6 * size, [lambda s=s: tex.rmsnorm_bwd(s[2], s[0], s[1], gamma, 0, False) for s in saved]

    def swiglu_row(quantizer, written):
        return (4 + written) * TOKENS * FFN, [lambda x=x: tex.swiglu(x, quantizer) for x in rotations(TOKENS, 2 * FFN)]

    yield f"rms_norm/forward/{TOKENS}x{HIDDEN}/bf16", lambda: norm_row(None, 2)
    yield f"rms_norm/backward/{TOKENS}x{HIDDEN}/bf16", norm_backward_row
    yield f"swiglu/forward/{TOKENS}x{FFN}/bf16", lambda: swiglu_row(None, 2)
    for name, make in (("delayed", delayed), ("block", block(1))):
        for direction in ("rowwise", "both") if name == "delayed" else ("rowwise",):
            both = direction == "both"
            yield (f"rms_norm_quantize/{name}/{direction}/{TOKENS}x{HIDDEN}/bf16",
                   lambda make=make, both=both: norm_row(make(both), 1 + both))
            yield (f"swiglu_quantize/{name}/{direction}/{TOKENS}x{FFN}/bf16",
                   lambda make=make, both=both: swiglu_row(make(both), 1 + both))


def adam(bytes_each, make):
    if make is None:
        parameters = [torch.nn.Parameter(random(SIDE, SIDE)) for _ in range(TENSORS)]
    else:
        with te.quantized_model_init(enabled=True, recipe=make()):
            layers = [te.Linear(SIDE, SIDE, bias=False, params_dtype=torch.bfloat16, device="cuda") for _ in range(TENSORS)]
        parameters = [layer.weight for layer in layers]
    for parameter in parameters:
        parameter.grad = random(SIDE, SIDE)
    optimizer = FusedAdam(parameters, lr=1e-4, master_weights=True)
    return bytes_each * TENSORS * SIDE * SIDE, [optimizer.step]


def adams():
    for name, bytes_each, make in (("bf16/f32_master", 28, None), ("fp8_delayed/f32_master", 27, recipes.DelayedScaling),
                                   ("fp8_current/f32_master", 27, recipes.Float8CurrentScaling)):
        yield f"adam/{name}", lambda bytes_each=bytes_each, make=make: adam(bytes_each, make)


def attention(eight_bits, case):
    """Functions that compute O and its gradients in 16 bits."""
    seq = case.seq
    starts = torch.arange(0, (case.batch + 1) * seq, seq, device="cuda", dtype=torch.int32)
    q, k, v, grad = (random(case.batch, seq, count, dim) for count, dim in
                     ((case.heads, case.key_dim), (case.kv_heads, case.key_dim), (case.kv_heads, case.value_dim),
                      (case.heads, case.value_dim)))

    def quantizer(dtype, scale):
        return Float8Quantizer(torch.full((1,), scale, device="cuda"), torch.zeros(1, device="cuda"), dtype)

    layout, mask = "bshd_bshd_bshd", "causal" if case.causal else "no_mask"
    common = {"attn_scale": case.key_dim ** -0.5, "dropout": 0.0, "qkv_layout": layout, "o_format": "bshd", "attn_mask_type": mask}
    backend = FusedAttnBackend["F16_arbitrary_seqlen"]
    forward_arguments, backward_arguments = {}, {}
    if case.window:
        common["window_size"] = (case.window - 1, 0)
    if case.sinks:
        common["softmax_type"] = "learnable"
        forward_arguments["softmax_offset"] = torch.randn(1, case.heads, 1, 1, device="cuda")
    if eight_bits:
        backend = FusedAttnBackend["FP8"]
        q, k, v, grad = quantizer(E4M3, 64.0)(q), quantizer(E4M3, 64.0)(k), quantizer(E4M3, 64.0)(v), quantizer(E5M2, 64.0)(grad)
        s = quantizer(E4M3, 448.0)
        forward_arguments = {"s_quantizer": s, "o_quantizer": quantizer(E4M3, 64.0)}
        backward_arguments = {"s_quantizer": s, "dp_quantizer": quantizer(E5M2, 65536.0), "dqkv_quantizer": quantizer(E5M2, 64.0)}

    def attend():
        return fused_attn_fwd(True, seq, seq, starts, starts, q, k, v, torch.bfloat16, backend, **forward_arguments, **common)

    out, saved, *_ = attend()

    def forward():
        result = attend()[0]
        return result.dequantize() if eight_bits else result

    def backward():
        results = fused_attn_bwd(seq, seq, starts, starts, q, k, v, out, grad, torch.bfloat16, list(saved), backend,
                                 **backward_arguments, **common, do_format="bshd", dqkv_layout=layout)[:3]
        return [result.dequantize() for result in results] if eight_bits else results

    return forward, backward


def attention_row(timer, name, rounds, flops, call):
    samples = [timer.microseconds(call)[0] for _ in range(3 + rounds)][3:]
    median = statistics.median(samples)
    return peer.row(name, rounds, median, flops=1e6 * flops / median)


def attentions(timer, rounds):
    for case in torch_attention.CASES:
        for kind in ("bf16", "fp8") if not case.sinks and case.key_dim == case.value_dim else ("bf16",):
            name = f"attention/{case.name}/{kind}"

            def forward_row(full, kind=kind, case=case):
                forward, _ = attention(kind == "fp8", case)
                return attention_row(timer, full, rounds, case.flops(1, 1), forward)

            def backward_row(full, kind=kind, case=case):
                _, backward = attention(kind == "fp8", case)
                return attention_row(timer, full, rounds, case.flops(3, 2), backward)

            yield f"{name}/forward", forward_row
            yield f"{name}/backward_any_order", backward_row


def moved_row(timer, name, rounds, make):
    moved, calls = make()
    samples = [timer.microseconds(calls[index % len(calls)]) for index in range(3 + rounds)][3:]
    median, copy = (statistics.median(column) for column in zip(*samples))
    bandwidth = 1e6 * moved / median
    return peer.row(name, rounds, median, bytes_per_second=bandwidth, of_copy=bandwidth / timer.copy_bandwidth(copy))


def layer_row(name, rounds, make):
    """Forward and backward of the layer; `forward_ms` is the part of forward, `host_ms` the time to launch one step."""
    recipe = make()
    layer = te.TransformerLayer(
        HIDDEN, FFN, HEADS, num_gqa_groups=KV_HEADS, layernorm_epsilon=EPSILON, hidden_dropout=0.0, attention_dropout=0.0,
        self_attn_mask_type="causal", normalization="RMSNorm", activation="swiglu", bias=False, fuse_qkv_params=True,
        params_dtype=torch.bfloat16, device="cuda")
    x, grad = random(SEQ, BATCH, HIDDEN).requires_grad_(), random(SEQ, BATCH, HIDDEN)
    positions = te.RotaryPositionEmbedding(HIDDEN // HEADS)(SEQ)

    def step(middle=None):
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            y = layer(x, rotary_pos_emb=positions)
        if middle is not None:
            middle.record()
        y.backward(grad)
        x.grad = None
        layer.zero_grad(set_to_none=True)

    samples = []
    for _ in range(3 + rounds):
        torch.cuda.synchronize()
        start = time.monotonic()
        step()
        host = 1e3 * (time.monotonic() - start)
        begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        for _ in range(STEPS_AT_ONCE - 1):
            step()
        begin.record()
        step(middle)
        end.record()
        end.synchronize()
        samples.append((begin.elapsed_time(end), begin.elapsed_time(middle), host))
    step_ms, forward_ms, host_ms = (statistics.median(column) for column in zip(*samples[3:]))
    return peer.row(name, rounds, 1e3 * step_ms, step_ms=step_ms, forward_ms=forward_ms, host_ms=host_ms)


def main():
    options = peer.arguments(__doc__, rounds=21).parse_args()
    torch.manual_seed(1)
    timer = peer.Timer()
    table = [(f"layer/llama_8b_2x4096/{name}/any_order", lambda full, make=make: layer_row(full, options.rounds // 2, make))
             for name, make in RECIPES.items()]
    table += attentions(timer, options.rounds)
    table += [(name, lambda full, make=make: moved_row(timer, full, options.rounds, make))
              for name, make in (*casts(), *elementwise(), *adams())]
    results = []
    for name, measure in table:
        if options.filter not in name:
            continue
        try:
            results.append(measure(name))
        except (RuntimeError, TypeError, AssertionError, AttributeError, ValueError) as error:
            print(f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}", file=sys.stderr)
            continue
        print(f"{name:56} {results[-1]['p50_us']:10.1f} us {results[-1].get('of_copy', 0.0):6.3f} of copy", file=sys.stderr)
        torch.cuda.empty_cache()
    print(f"Transformer Engine {transformer_engine.__version__}", file=sys.stderr)
    peer.write(results, options.out)


if __name__ == "__main__":
    main()
