"""Configurations of ranks that have each sequence between them, for `torch_memory`."""

from .configurations import LLAMA3_8B, ODD, SMALL, TITAN


def configurations():
    """(operators, program, keys)"""
    pair, pairs = {"ranks": 2, "context_parallel": 2}, {"ranks": 4, "context_parallel": 2}
    all_four, replicas = {"ranks": 4, "context_parallel": 4}, {**pairs, "mesh": "2x2"}
    # In `long` attention has the peak, in `brief` the loss has.
    long = {"model.seq": 640, "model.vocabulary": 40, "model.ffn": 32}
    brief = {"model.seq": 96}
    full, passes = {"training.checkpoint": "full"}, {"training.micro_batches": 2}
    equal_heads, one_head = {"model.kv_heads": SMALL["model.heads"]}, {"model.kv_heads": 1}
    gpt = {"model.form": "gpt", "model.positions": "none", **equal_heads}
    mixture = {"model.experts": 8, "model.top_k": 3, "model.expert_ffn": 72}
    for keys in [
        {**brief, **pair}, {**brief, **TITAN, **pairs}, {**brief, **TITAN, **full, **all_four, **passes},
        {**long, **pair}, {**long, **all_four}, {**long, **TITAN, **pair, **equal_heads, "model.batch": 2},
        {**long, **all_four, **equal_heads, **full, "model.batch": 3}, {**long, **all_four, **one_head},
        {**long, **TITAN, **full, **pair, **one_head}, {**long, **replicas, **TITAN}, {**long, **pairs, "mesh": "4x1"},
        {**long, **pair, **gpt}, {**long, **TITAN, **all_four, **gpt, **full},
        {**long, **pair, "model.form": "gemma", "model.head_dim": 24, **one_head},
        {**long, **TITAN, **all_four, "model.qk_norm": True, **passes}, {**long, **pair, "model.qk_norm": True, **full},
        {**long, **pair, "model.bias": "qkv", "reduce_dtype": "f32", "reshard_after_forward": False},
        {**long, **pair, "training.frozen_layers": 1}, {**long, **TITAN, **all_four, "training.frozen_layers": 2},
        {**long, **TITAN, **pair, "training.loss_chunks": 4}, {**long, **pair, "model.head": "tied"},
        {**long, **TITAN, **all_four, **full, "training.checkpoint_every": 2, "training.clip_norm": 1.0, "model.layers": 4},
        {**long, **TITAN, **pair, **mixture}, {**brief, **all_four, **mixture, **full, "model.dense_layers": 1},
        {**brief, **ODD, "model.seq": 144, **TITAN, **pair}, {**long, **ODD, "model.seq": 648, **all_four, **full},
    ]:  # fmt: skip
        is_tied = keys.get("model.head") == "tied" or keys.get("model.form") == "gemma"  # see configurations_of_gemma
        yield "host", "torchtitan", keys
        if keys.get("model.hidden") == ODD["model.hidden"]:
            continue  # without values a rank with fewer rows holds more than with values, for a reason that is not known
        yield "cuda_shapes", "torchtitan", {**keys, "model.head": "own"} if is_tied else keys
    float8 = {"training.recipe": "current", "model.seq": 448, **TITAN}
    yield "cuda_shapes", "torchtitan", {**float8, **pair}
    yield "cuda_shapes", "torchtitan", {**float8, **all_four, **full, "training.quantized_weights": True}
    for keys in [
        {"ranks": 64, "context_parallel": 8, "model.seq": 131072, **full}, {"ranks": 16, "context_parallel": 4, "model.seq": 32768},
        {"ranks": 32, "mesh": "2x16", "context_parallel": 16, "model.seq": 131072, **full, "training.loss_chunks": 8},
    ]:  # fmt: skip
        yield "cuda_shapes", "torchtitan", {**LLAMA3_8B, **TITAN, **keys}
