"""Records what PyTorch programs hold on GPUs: `python -m fp8lab_subjects.recording.gpu_memory` writes
measured/torch-memory-cuda.json. Configurations with two ranks need two GPUs.

The programs are the same as in `torch_memory`. Figures are bytes of PyTorch's allocator on rank 0; `reserved` is what it has
reserved for all steps. Each configuration runs in processes of its own, so no other has filled the allocator's cache.
"""

import datetime
import json
import sys

import torch

from .. import cells, ledger, ranks
from .configurations import DEFAULTS, LLAMA3_8B, MASTERS, TITAN
from .torch_memory import SCHEMA, even_choices, figures_of_ranks, make_meshes, train

SMALL = {
    "model.form": "llama", "model.layers": 5, "model.hidden": 1280, "model.heads": 10, "model.kv_heads": 2,
    "model.ffn": 3456, "model.seq": 1792, "model.batch": 1, "model.vocabulary": 20480,
    "training.loss": "cross_entropy", "training.optimizer": "adam", "training.moments": "bf16", "training.steps": 3,
}  # fmt: skip
GPT = {"model.form": "gpt", "model.kv_heads": 10}
WIDE = {
    "model.layers": 3, "model.hidden": 2048, "model.heads": 16, "model.kv_heads": 16, "model.ffn": 5632, "model.seq": 4096,
    "model.vocabulary": 32000,
}  # fmt: skip
DEEP = {
    "model.layers": 14, "model.hidden": 768, "model.heads": 12, "model.kv_heads": 4, "model.ffn": 2048, "model.seq": 1024,
    "model.batch": 3, "model.vocabulary": 50304,
}  # fmt: skip
F32 = {"training.param_dtype": "f32", "training.moments": "f32"}
FULL = {"training.checkpoint": "full"}
TWO_PASSES = {"training.micro_batches": 2}
SECOND = {**FULL, "training.checkpoint_every": 2}

# Layers and vocabularies of published models.
QWEN3_600M = {
    "model.layers": 28, "model.hidden": 1024, "model.heads": 16, "model.kv_heads": 8, "model.head_dim": 128,
    "model.ffn": 3072, "model.seq": 4096, "model.vocabulary": 151936, "model.head": "tied", "model.qk_norm": True,
}  # fmt: skip
QWEN2_500M = {
    "model.layers": 24, "model.hidden": 896, "model.heads": 14, "model.kv_heads": 2, "model.ffn": 4864,
    "model.seq": 2048, "model.vocabulary": 151936, "model.head": "tied", "model.bias": "qkv",
}  # fmt: skip
LLAMA3_1B = {
    "model.layers": 16, "model.hidden": 2048, "model.heads": 32, "model.kv_heads": 8, "model.ffn": 8192,
    "model.seq": 4096, "model.vocabulary": 128256, "model.head": "tied",
}  # fmt: skip
GPT2_MEDIUM = {
    "model.form": "gpt", "model.layers": 24, "model.hidden": 1024, "model.heads": 16, "model.kv_heads": 16,
    "model.ffn": 4096, "model.seq": 1024, "model.vocabulary": 50304, "model.head": "tied",
}  # fmt: skip
MISTRAL_6_LAYERS = {
    "model.layers": 6, "model.hidden": 4096, "model.heads": 32, "model.kv_heads": 8, "model.ffn": 14336,
    "model.seq": 4096, "model.vocabulary": 32768,
}  # fmt: skip
FLOAT8 = {"training.recipe": "current"}
GEMMA_2B_6_LAYERS = {
    "model.form": "gemma", "model.layers": 6, "model.hidden": 2048, "model.heads": 8, "model.kv_heads": 1,
    "model.head_dim": 256, "model.ffn": 16384, "model.seq": 2048, "model.vocabulary": 256000, "model.head": "tied",
}  # fmt: skip
DDP = {"ranks": 2, "sharding": "ddp"}
SELECTIVE = {"training.checkpoint": "selective"}
ALTERNATE = {"training.checkpoint": "selective_alternate"}


def configurations():
    """(program, keys)"""
    for keys in [
        {}, FULL, GPT, WIDE, DEEP, {**WIDE, **FULL}, {**DEEP, **MASTERS}, {**DEEP, **GPT, "model.kv_heads": 12},
        {**MASTERS, **TWO_PASSES}, {"training.optimizer": "foreach_adam", **DEEP}, {"model.head": "tied"},
        {"training.optimizer": "none", **WIDE},
    ]:  # fmt: skip
        yield "worker", keys
    for keys in [{}, FULL, GPT, WIDE, DEEP, {**DEEP, **FULL}, {**WIDE, **TWO_PASSES}, {**LLAMA3_8B, "model.layers": 2}]:
        yield "torchtitan", keys
    for keys in [{}, TITAN, {**WIDE, **TITAN}, {**DEEP, "reduce_dtype": "f32"}, {**DEEP, **TITAN, **FULL}]:
        yield "worker", {**keys, "ranks": 2}
    for keys in [
        TITAN, {**WIDE, **TITAN}, {**DEEP, **TITAN, **FULL}, {**DEEP, **TITAN, "reshard_after_forward": False},
        {**WIDE, **TITAN, **TWO_PASSES}, {**GPT, **TITAN}, {**LLAMA3_8B, **TITAN, "model.layers": 3},
    ]:  # fmt: skip
        yield "torchtitan", {**keys, "ranks": 2}
    yield from configurations_of_models()
    yield from configurations_of_replicas()
    yield from configurations_of_chunked_losses()
    yield from configurations_of_mixtures()
    yield from configurations_of_frozen_layers()
    yield from configurations_of_latents()
    yield from configurations_of_reserved_memory()
    yield from configurations_of_sequences()


def configurations_of_models():
    """Chosen after lib/harness/eager was written, and not used to write it; those on eight bits need torchao."""
    for program, keys in [
        ("torchtitan", QWEN3_600M), ("torchtitan", {**QWEN3_600M, **FULL, "model.batch": 2}),
        ("torchtitan", {**WIDE, **F32}), ("worker", QWEN2_500M), ("worker", {**QWEN2_500M, **SECOND}),
        ("torchtitan", LLAMA3_1B), ("torchtitan", {**LLAMA3_1B, **SECOND}),
        ("worker", {**LLAMA3_1B, **MASTERS, "training.micro_batches": 3}), ("worker", {**GPT2_MEDIUM, "model.batch": 4}),
        ("torchtitan", {**GPT2_MEDIUM, "training.clip_norm": 1.0, "training.optimizer": "foreach_adam"}),
        ("torchtitan", MISTRAL_6_LAYERS), ("torchtitan", {**MISTRAL_6_LAYERS, **FULL, "model.qk_norm": True}),
    ]:  # fmt: skip
        yield program, keys
    for program, keys in [
        ("torchtitan", LLAMA3_1B), ("torchtitan", {**LLAMA3_1B, **FULL}), ("worker", LLAMA3_1B),
        ("torchtitan", MISTRAL_6_LAYERS), ("torchtitan", {**QWEN3_600M, **TWO_PASSES}), ("worker", QWEN2_500M),
        ("torchtitan", {**LLAMA3_1B, **F32, "model.kv_heads": 32, "training.optimizer": "foreach_adam"}),
        ("worker", {**GPT2_MEDIUM, "model.batch": 4}),
        ("worker", {**MISTRAL_6_LAYERS, "model.vocabulary": 0, "training.loss": "sum"}),
        ("worker", {**MISTRAL_6_LAYERS, "model.layer": "layernorm_mlp", "model.vocabulary": 0, "training.loss": "mse"}),
    ]:  # fmt: skip
        yield program, {**keys, **FLOAT8}
    for keys in [QWEN3_600M, {**LLAMA3_1B, **SECOND}, {**MISTRAL_6_LAYERS, **FULL, "reshard_after_forward": False}]:
        yield "torchtitan", {**keys, **TITAN, "ranks": 2}
    for keys in [{}, {"training.quantized_weights": True}, {"training.quantized_weights": True, **FULL}]:
        yield "torchtitan", {**LLAMA3_1B, **TITAN, **FLOAT8, **keys, "ranks": 2}


def configurations_of_replicas():
    """DistributedDataParallel, selective recomputation, form gemma and replicas of shards, none of which was measured on
    a GPU before lib/harness/eager had them."""
    small_gemma = {"model.form": "gemma", "model.head_dim": 128, "model.head": "tied"}
    for program, keys in [
        ("worker", {}), ("worker", WIDE), ("torchtitan", {**DEEP, **TWO_PASSES}), ("worker", {**WIDE, **F32, **FULL}),
        ("torchtitan", LLAMA3_1B), ("torchtitan", {**QWEN3_600M, **TWO_PASSES}),
        ("worker", {**GPT2_MEDIUM, "model.batch": 4}), ("worker", {**MISTRAL_6_LAYERS, "model.layers": 2}),
        ("torchtitan", GEMMA_2B_6_LAYERS),
    ]:  # fmt: skip
        yield program, {**keys, **DDP}
    for program, keys in [
        ("worker", SELECTIVE), ("torchtitan", {**LLAMA3_1B, **SELECTIVE}), ("torchtitan", {**LLAMA3_1B, **ALTERNATE}),
        ("worker", {**QWEN2_500M, **SELECTIVE}), ("worker", {**GPT2_MEDIUM, **ALTERNATE, "model.batch": 4}),
        ("torchtitan", {**MISTRAL_6_LAYERS, **ALTERNATE}), ("torchtitan", {**QWEN3_600M, **SELECTIVE}),
        ("worker", small_gemma), ("torchtitan", {**small_gemma, **FULL}), ("torchtitan", GEMMA_2B_6_LAYERS),
        ("worker", GEMMA_2B_6_LAYERS), ("torchtitan", {**GEMMA_2B_6_LAYERS, **SELECTIVE}),
    ]:  # fmt: skip
        yield program, keys
    for program, keys in [
        ("torchtitan", {**MISTRAL_6_LAYERS, **SELECTIVE}), ("torchtitan", {**LLAMA3_1B, **ALTERNATE}),
        ("torchtitan", {**DEEP, **ALTERNATE, **TWO_PASSES}), ("worker", {**DEEP, **SELECTIVE}),
        ("torchtitan", GEMMA_2B_6_LAYERS), ("worker", {**small_gemma, **FULL}), ("torchtitan", {**WIDE, "mesh": "2x1"}),
        ("torchtitan", {**DEEP, "mesh": "2x1", **TWO_PASSES}), ("worker", {**DEEP, "mesh": "2x1"}),
    ]:  # fmt: skip
        yield program, {**keys, **TITAN, "ranks": 2}


def configurations_of_chunked_losses():
    """On one rank: FSDP2 of PyTorch 2.11 cannot compute a loss in parts, see memory.md."""
    for program, keys in [
        ("worker", WIDE), ("torchtitan", MISTRAL_6_LAYERS), ("torchtitan", LLAMA3_1B),
        ("torchtitan", {**QWEN3_600M, **TWO_PASSES}), ("torchtitan", {**GEMMA_2B_6_LAYERS, **FULL}),
    ]:  # fmt: skip
        yield program, {**keys, "training.loss_chunks": 8}


MIXTRAL_1_LAYER = {
    "model.layers": 1, "model.hidden": 4096, "model.heads": 32, "model.kv_heads": 8, "model.experts": 8, "model.top_k": 2,
    "model.expert_ffn": 14336, "model.seq": 4096, "model.vocabulary": 32000,
}  # fmt: skip
QWEN3_30B_2_LAYERS = {
    "model.layers": 2, "model.hidden": 2048, "model.heads": 32, "model.kv_heads": 4, "model.head_dim": 128,
    "model.qk_norm": True, "model.experts": 128, "model.top_k": 8, "model.expert_ffn": 768, "model.seq": 4096,
    "model.vocabulary": 151936,
}  # fmt: skip
SMALL_MIXTURE = {"model.experts": 8, "model.top_k": 2, "model.expert_ffn": 1728}
SHARED = {"model.router": "sigmoid", "model.shared_experts": 1, "model.dense_layers": 1, "model.ffn": 3456}


def configurations_of_mixtures():
    """On one rank; none of them was measured on a GPU before lib/harness/eager had mixtures of experts."""
    for program, keys in [
        ("worker", SMALL_MIXTURE), ("torchtitan", SMALL_MIXTURE), ("torchtitan", MIXTRAL_1_LAYER),
        ("torchtitan", {**MIXTRAL_1_LAYER, **FULL, "model.layers": 2}), ("torchtitan", QWEN3_30B_2_LAYERS),
        ("torchtitan", {**QWEN3_30B_2_LAYERS, **FULL, **TWO_PASSES}),
        ("torchtitan", {**SMALL_MIXTURE, **SHARED}), ("worker", {**SMALL_MIXTURE, **SHARED, **MASTERS}),
        ("worker", {**SMALL_MIXTURE, "model.top_k": 4, "model.experts": 32, "training.optimizer": "foreach_adam"}),
        ("torchtitan", {**SMALL_MIXTURE, "model.top_k": 1, "training.clip_norm": 1.0, **FULL}),
    ]:  # fmt: skip
        yield program, keys


def configurations_of_frozen_layers():
    """On one rank; none of them was measured on a GPU before lib/harness/eager had frozen layers."""
    for program, keys, frozen in [
        ("worker", {}, 3), ("torchtitan", LLAMA3_1B, 8), ("torchtitan", {**QWEN3_600M, **TWO_PASSES}, 20),
        ("torchtitan", {**MISTRAL_6_LAYERS, **FULL}, 4), ("worker", {**GPT2_MEDIUM, "model.batch": 4}, 12),
        ("torchtitan", QWEN3_30B_2_LAYERS, 1),
        ("worker", {**WIDE, **F32, "training.optimizer": "foreach_adam"}, 2),
    ]:  # fmt: skip
        yield program, {**keys, "training.frozen_layers": frozen}


SMALL_LATENTS = {
    "model.kv_heads": 0, "model.head_dim": 96, "model.q_rank": 768, "model.kv_rank": 256, "model.rope_dim": 32,
    "model.value_dim": 64,
}  # fmt: skip
DEEPSEEK_V3_2_LAYERS = {
    "model.layers": 2, "model.hidden": 7168, "model.heads": 128, "model.kv_heads": 0, "model.head_dim": 128,
    "model.q_rank": 1536, "model.kv_rank": 512, "model.rope_dim": 64, "model.value_dim": 128, "model.ffn": 18432,
    "model.seq": 12288, "model.vocabulary": 32000,
}  # fmt: skip


# Its attention and its router, with 32 of 256 experts.
DEEPSEEK_V3_MIXTURE = {
    **DEEPSEEK_V3_2_LAYERS, "model.seq": 8192, "model.experts": 32, "model.top_k": 8, "model.expert_ffn": 2048,
    "model.shared_experts": 1, "model.dense_layers": 1, "model.router": "sigmoid", "model.router_scale": 2.5,
    "model.expert_groups": 8, "model.top_groups": 4, "model.router_bias_rate": 0.001,
}  # fmt: skip


def configurations_of_latents():
    """On one rank; none of them was measured on a GPU before lib/harness/eager had latent attention, and biases and groups
    of the choice."""
    for program, keys in [
        ("worker", SMALL_LATENTS), ("torchtitan", SMALL_LATENTS), ("torchtitan", DEEPSEEK_V3_2_LAYERS),
        ("torchtitan", {**DEEPSEEK_V3_2_LAYERS, **FULL, **TWO_PASSES}), ("worker", DEEPSEEK_V3_2_LAYERS),
        ("torchtitan", DEEPSEEK_V3_MIXTURE),
    ]:  # fmt: skip
        yield program, keys


def configurations_of_reserved_memory():
    """On one rank; chosen after lib/harness/eager had the order of the allocations of the runs before."""
    for program, keys in [
        ("torchtitan", {**WIDE, **FULL}), ("torchtitan", {**DEEP, **TWO_PASSES, "model.batch": 2}),
        ("torchtitan", {**QWEN3_600M, **SECOND}), ("worker", {**MISTRAL_6_LAYERS, "model.layers": 4}),
        ("torchtitan", {**LLAMA3_1B, "model.layers": 10, "training.optimizer": "foreach_adam"}),
        ("worker", {**QWEN2_500M, "model.layers": 12, **TWO_PASSES}), ("worker", {**GPT2_MEDIUM, **FULL, "model.batch": 8}),
        ("torchtitan", {**SMALL_MIXTURE, "model.top_k": 3, "model.experts": 16, **TWO_PASSES}),
        ("worker", {**SMALL_MIXTURE, **FULL, "model.layers": 7}), ("torchtitan", {**MIXTRAL_1_LAYER, "model.seq": 3072}),
        ("worker", {**WIDE, **F32, **TWO_PASSES}),
    ]:  # fmt: skip
        yield program, keys


def configurations_of_sequences():
    """Two ranks that have each sequence between them; none of them was measured on a GPU before lib/harness/eager had them."""
    for keys in [
        {**LLAMA3_1B, "model.seq": 16384}, {**LLAMA3_1B, **FULL, "model.seq": 32768},
        {**QWEN3_600M, **TWO_PASSES}, {**MISTRAL_6_LAYERS, "model.seq": 8192}, {**MISTRAL_6_LAYERS, **FULL, "model.seq": 16384},
        {**WIDE, **FULL, "model.seq": 16384, "model.vocabulary": 2048}, {**DEEP, "model.seq": 4096},
        {**SMALL_MIXTURE, "model.seq": 4096, **SECOND},
    ]:  # fmt: skip
        yield "torchtitan", {**keys, **TITAN, "ranks": 2, "context_parallel": 2}


def measure(program, keys, rank, folder):
    torch.cuda.set_device(rank)
    torch.manual_seed(1)
    cell = cells.Cell("after", {**DEFAULTS, **SMALL, **keys, "device": "cuda"}, ["memory"], 0)
    if cell.has_ranks:
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=cell["ranks"],
            device_id=torch.device("cuda", rank),
        )  # fmt: skip
    meshes = make_meshes(cell, program, "cuda")
    with even_choices(cell, on_shapes=False):
        figures = train(cell, program, meshes, ledger.GpuLedger(), f"cuda:{rank}")
    return {"bytes": {**figures, "reserved": torch.cuda.max_memory_reserved()}}


def record(first, last):
    """Configurations first to last - 1; a line of JSON each."""
    for program, keys in list(configurations())[first:last]:
        one = (program, keys)
        figures = ranks.run(lambda rank, folder, one=one: measure(*one, rank, folder), keys.get("ranks", 1))
        row = {"operators": "cuda", "program": program, "keys": {**SMALL, **keys}, **figures_of_ranks(keys, figures)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    record(*(int(one) for one in sys.argv[1:3]) if len(sys.argv) == 3 else (0, None))
