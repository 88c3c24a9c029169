"""Records what PyTorch programs hold on GPUs: `python -m fp8lab_subjects.recording.gpu_memory` writes
measured/torch-memory-cuda.json. Configurations with two ranks need two GPUs.

The programs are the same as in `torch_memory`. Figures are bytes of PyTorch's allocator on rank 0; `reserved` is what it has
reserved for all steps. Each configuration runs in processes of its own, so no other has filled the allocator's cache.
"""

import datetime
import json
import sys

import torch
from torch.distributed.device_mesh import init_device_mesh

from .. import cells, ledger, ranks
from .torch_memory import DEFAULTS, LLAMA3_8B, MASTERS, SCHEMA, TITAN, train

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


def measure(program, keys, rank, folder):
    torch.cuda.set_device(rank)
    torch.manual_seed(1)
    cell = cells.Cell("after", {**DEFAULTS, **SMALL, **keys, "device": "cuda"}, ["memory"], 0)
    mesh = None
    if cell.sharded:
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=cell["ranks"],
            device_id=torch.device("cuda", rank),
        )  # fmt: skip
        mesh = init_device_mesh("cuda", (cell["ranks"],))
    figures = train(cell, program, mesh, ledger.GpuLedger(), f"cuda:{rank}")
    return {**figures, "reserved": torch.cuda.max_memory_reserved()}


def record(first, last):
    """Configurations first to last - 1; a line of JSON each."""
    for program, keys in list(configurations())[first:last]:
        one = (program, keys)
        figures = ranks.run(lambda rank, folder, one=one: measure(*one, rank, folder), keys.get("ranks", 1))[0]
        row = {"operators": "cuda", "program": program, "keys": {**SMALL, **keys}, "bytes": figures}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    record(*(int(one) for one in sys.argv[1:3]) if len(sys.argv) == 3 else (0, None))
