"""Records what Transformer Engine's layers hold on one GPU: `python -m fp8lab_subjects.recording.te_memory [NAME...]`
prints one line of JSON for each configuration whose name begins with a NAME, or for all.

Sharded configurations are rank 0 of a process group that moves nothing (`fake`): FSDP2 allocates what it allocates among
so many ranks, and values are not the values of a training. DistributedDataParallel runs over NCCL on one rank, because
its buckets do not depend on the number of ranks. Each configuration runs in a process of its own; if it fails or takes
longer than LIMIT_S, its line has the error. With FP8LAB_ALLOCATOR_SNAPSHOTS=DIR the memory timeline of each
configuration is kept there, and PyTorch's own snapshot of those in SNAPSHOTS. FP8LAB_TE_SUBJECT=torch runs PyTorch's layers
in place of the library's, without a GPU if there is none.

`te_memory document < LINES` writes measured/te-memory-cuda.json from these lines. lib/harness/subjects/profile/memory_profile.cpp is
held to it.
"""

import gzip
import json
import os
import pathlib
import signal
import sys
import time

from .. import cells, rank, ranks, subjects
from ..allocator_history import FOLDER
from .configurations import DEFAULTS

SCHEMA = "fp8lab.te-memory/1"
FIGURES = ("end_of_forward", "end_of_backward", "end_of_step", "peak", "reserved_peak")
LIMIT_S = 90
SUBJECT = os.environ.get("FP8LAB_TE_SUBJECT", "transformer_engine")
# Snapshots of PyTorch's allocator are large; timelines have the same events.
SNAPSHOTS = ("fp8.delayed", "recompute.delayed")
LEFT_OUT = {
    "model.dropout": 0.0, "model.op_fuser": "none", "model.split": "even", "model.vocabulary": 0,
    "training.fp8_attention": False, "training.fp8_attention_backward": True, "training.fp8_mha": False,
    "training.cache_weights": False, "training.deferred_init": False, "training.resume_at": 0, "training.data": "normal",
    "training.keep_loss": False,
}  # fmt: skip
SIZES = {
    "model.form": "llama", "model.layers": 4, "model.hidden": 2048, "model.heads": 16, "model.kv_heads": 4,
    "model.ffn": 5632, "model.seq": 2048, "model.batch": 2, "training.loss": "mse", "training.optimizer": "adam",
    "training.moments": "f32", "training.steps": 3,
}  # fmt: skip
LAYERS = {
    **DEFAULTS, **LEFT_OUT, **SIZES, "ranks": 4, "sharding": "fsdp", "training.master_weights": "f32",
}  # fmt: skip
FP8 = {"training.quantized_weights": True}
STAY = {"reshard_after_forward": False}
TWICE = {"training.micro_batches": 2}
FULL = {"training.checkpoint": "full"}
DDP = {"sharding": "ddp", "ranks": 1}
MLP = {"model.layer": "layernorm_mlp"}
LINEAR = {"model.layer": "linear"}
ONE = {"ranks": 1, "sharding": "none"}
ONE_FP8 = {**ONE, **FP8, "training.optimizer": "none", "training.master_weights": "none"}
WIDE = {  # layers of Llama-3 8B
    "model.layers": 3, "model.hidden": 4096, "model.heads": 32, "model.kv_heads": 8, "model.ffn": 14336, "model.seq": 4096,
    "model.batch": 1, "ranks": 8,
}  # fmt: skip

LM = {"model.vocabulary": 32000, "training.loss": "cross_entropy"}
LLAMA3 = {"model.vocabulary": 128256}
TIED = {"model.head": "tied"}

LLAMA3_1B = {
    "model.layers": 16, "model.heads": 32, "model.kv_heads": 8, "model.ffn": 8192, "model.seq": 4096, "model.batch": 1,
    "ranks": 8,
}  # fmt: skip
GPT = {
    "model.form": "gpt", "model.layers": 5, "model.hidden": 3072, "model.heads": 24, "model.kv_heads": 24,
    "model.ffn": 12288,
}  # fmt: skip
PLAIN_MOMENTS = {"training.moments": "bf16", "training.master_weights": "none", "training.loss": "sum"}

EVERY = ("bf16", "delayed", "current", "block")
# What is combined with each recipe.
CHOSEN = {
    "fp8": (FP8, EVERY[1:]), "fp8-stay": ({**FP8, **STAY}, EVERY[1:]), "plain": ({}, EVERY), "twice": (TWICE, EVERY),
    "recompute": (FULL, EVERY), "fp8-twice": ({**FP8, **TWICE}, EVERY[1:]), "ddp": (DDP, EVERY),
    "fp8-mlp": ({**FP8, **MLP}, EVERY[1:]), "uneven": ({"ranks": 3}, EVERY), "fp8-one": ({**FP8, "ranks": 1}, EVERY[1:]),
    "recompute-twice": ({**FULL, **TWICE}, EVERY), "stay": (STAY, EVERY), "ddp-twice": ({**DDP, **TWICE}, EVERY),
    "fp8-wide": ({**FP8, **WIDE}, EVERY[1:]), "fp8-stay-twice": ({**FP8, **STAY, **TWICE}, EVERY[1:]),
    "twice-stay": ({**TWICE, **STAY}, EVERY), "recompute-stay": ({**FULL, **STAY}, EVERY),
    "ddp-recompute": ({**DDP, **FULL}, EVERY[:2]), "fp8-uneven": ({**FP8, "ranks": 3}, EVERY[1:]),
    "fp8-recompute": ({**FP8, **FULL}, EVERY[1:]),
    # Chosen when predictions existed for all of the above.
    "later-fp8-1b": ({**FP8, **LLAMA3_1B}, ("delayed", "current")),
    "later-fp8-1b-twice": ({**FP8, **LLAMA3_1B, **TWICE, "mesh": "2x4"}, ("delayed", "current")),
    "later-fp8-8b": ({**FP8, **WIDE, **STAY, "ranks": 4}, ("delayed", "block")),
    "later-fp8-linear": ({**FP8, **WIDE, "model.layer": "linear", "model.hidden": 8192, "ranks": 4}, ("delayed", "current")),
    "later-fp8-sum": ({**FP8, **MLP, **WIDE, "ranks": 2, **PLAIN_MOMENTS}, ("delayed",)),
    "later-fp8-block": ({**FP8, **WIDE, **FULL, **TWICE, "ranks": 6}, ("block",)),
    "later-twice": ({**WIDE, **PLAIN_MOMENTS, "training.micro_batches": 4}, ("bf16", "delayed", "block")),
    "later-recompute": ({**LLAMA3_1B, **FULL}, EVERY),
    "later-recompute-8b": ({**WIDE, **FULL, "training.micro_batches": 3, "mesh": "2x4"}, ("bf16", "current")),
    "later-uneven": ({**WIDE, "ranks": 6}, ("bf16", "delayed")),
    "later-uneven-twice": ({**LLAMA3_1B, **TWICE, **FULL, "ranks": 7}, ("current",)),
    "later-ddp": ({**LLAMA3_1B, **DDP, "training.micro_batches": 3}, ("bf16", "delayed", "current")),
    "later-ddp-8b": ({**WIDE, **DDP, **PLAIN_MOMENTS}, ("block",)),
    "later-gpt": ({**GPT, **FP8}, ("delayed", "current")), "later-gpt-twice": ({**GPT, **TWICE}, ("delayed", "block")),
    "later-gpt-recompute": ({**GPT, **FULL}, ("delayed",)), "later-gpt-ddp": ({**GPT, **DDP}, ("delayed",)),
    # Each kind of layer on one GPU, for releases that no other run compares.
    "one": (ONE, EVERY), "one-mlp": ({**ONE, **MLP}, EVERY), "one-linear": ({**ONE, **LINEAR}, EVERY),
    "one-fp8": (ONE_FP8, EVERY[1:]), "one-fp8-mlp": ({**ONE_FP8, **MLP}, EVERY[1:]),
    "one-fp8-linear": ({**ONE_FP8, **LINEAR}, EVERY[1:]), "one-recompute": ({**ONE, **FULL}, EVERY),
    "one-recompute-mlp": ({**ONE, **FULL, **MLP}, EVERY), "one-gpt": ({**ONE, **GPT}, EVERY),
    "one-gpt-mlp": ({**ONE, **GPT, **MLP}, EVERY), "one-gpt-linear": ({**ONE, **GPT, **LINEAR}, EVERY),
    "one-fp8-gpt": ({**ONE_FP8, **GPT}, EVERY[1:]),
    # Language models. Embedding, last norm and head are PyTorch's.
    "lm": (LM, EVERY), "lm-one": ({**LM, **ONE}, EVERY), "lm-one-fp8": ({**LM, **ONE_FP8}, EVERY[1:]),
    "lm-twice": ({**LM, **TWICE}, EVERY[:2]), "lm-one-twice": ({**LM, **ONE, **TWICE}, EVERY[:2]),
    "lm-recompute": ({**LM, **FULL}, EVERY[:2]), "lm-tied": ({**LM, **TIED}, EVERY[:2]),
    "lm-one-tied": ({**LM, **ONE, **TIED}, EVERY[:1]), "lm-chunks": ({**LM, "training.loss_chunks": 8}, ("bf16", "current")),
    "lm-stay": ({**LM, **STAY}, ("bf16", "block")), "lm-uneven": ({**LM, "ranks": 3}, ("bf16", "delayed")),
    "lm-wide-reductions": ({**LM, "reduce_dtype": "f32"}, ("bf16",)), "lm-ddp": ({**LM, **DDP}, ("bf16", "current")),
    "lm-1b": ({**LM, **LLAMA3_1B, **LLAMA3}, ("bf16", "delayed", "block")), "lm-8b": ({**LM, **WIDE, **LLAMA3}, ("bf16", "current")),
    "lm-gpt": ({**LM, **GPT}, ("bf16", "delayed")), "lm-one-gpt": ({**LM, **ONE, **GPT}, ("bf16", "delayed")),
}  # fmt: skip


def configurations():
    """Keys by name."""
    return {
        f"{name}.{recipe}": {**keys, "training.recipe": recipe}
        for name, (keys, recipes) in CHOSEN.items()
        for recipe in recipes
    }


def start_group(cell, folder):
    import torch.distributed as dist

    if cell.replicated:
        rank.start_group(cell, 0, folder)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=cell["ranks"], store=FakeStore())


def measure(name, keys, folder):
    """A row: figures of the memory instrument, which the worker uses, in the last of the steps."""
    import torch

    signal.alarm(LIMIT_S)
    begun = time.monotonic()
    kept = os.environ.get(FOLDER)
    if kept and name not in SNAPSHOTS:
        del os.environ[FOLDER]
    elif kept:
        os.environ[FOLDER] = f"{kept}/{name}"
    torch.set_num_threads(1)
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if has_gpu else torch.device("cpu")
    cell = cells.Cell("after", {**LAYERS, **keys, "subject": SUBJECT, "device": device.type}, ["memory"], LIMIT_S)
    if has_gpu:
        torch.cuda.set_device(device)
    start_group(cell, folder)
    answer = rank.trained(cell, "memory", 0, device, None, False)
    if kept and answer["timeline"]:
        path = pathlib.Path(kept) / f"{name}.timeline.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(answer["timeline"].encode()))
    metrics = {metric: value for metric, (value, _, _) in answer["metrics"].items() if value is not None}
    return {
        "metrics": metrics,
        "peak_by_holder": answer["peak_by_holder"][:12],
        "notes": answer["notes"],
        "seconds": round(time.monotonic() - begun, 1),
    }


def record(names):
    chosen = {
        name: keys
        for name, keys in configurations().items()
        if not names or any(name.startswith(one) for one in names)
    }
    subjects.preload(cells.Cell("after", {**LAYERS, "subject": SUBJECT, "device": "cuda"}, [], 0))
    for name, keys in chosen.items():
        row = {"name": name, "keys": keys}
        try:
            row |= ranks.run(lambda _, folder, one=(name, keys): measure(*one, folder), 1)[0]
        except ranks.Crash as crash:
            row["error"] = f"longer than {LIMIT_S} s" if crash.number == signal.SIGALRM else str(crash)
        except ranks.Failure as failure:
            row["error"] = str(failure)
        print(json.dumps(row), flush=True)


def document(lines):
    """The record of lines that record() printed."""
    rows, measured = [], ""
    for line in lines:
        row = json.loads(line)
        kept = {"name": row["name"], "keys": row["keys"]}
        if "error" in row:
            kept["error"] = row["error"].splitlines()[-1]
        else:
            kept["bytes"] = {name: row["metrics"][f"memory.{name}_bytes"] for name in FIGURES}
            measured = ", ".join(note for note in row["notes"] if note.startswith(("torch ", "transformer_engine ", "on ")))
        rows.append(kept)
    common = {key: value for key, value in LAYERS.items() if key in DEFAULTS and value != DEFAULTS[key] or key in SIZES}
    head = {"schema": SCHEMA, "subject": SUBJECT, "measured": measured, "keys": common}
    return json.dumps(head)[:-1] + ', "rows": [\n  ' + ",\n  ".join(json.dumps(row) for row in rows) + "\n]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["document"]:
        print(document(sys.stdin))
    else:
        record(sys.argv[1:])
