"""Configurations of what GPT-OSS has, for `torch_memory`: attention with sinks, and experts with biases and limits."""

from .configurations import ODD, SMALL, TITAN


def configurations():
    """(operators, program, keys)"""
    sinks = {"model.attention_sinks": True, "model.bias": True, "model.window": 10, "model.window_every": 2}
    # In `long` attention has the peak.
    long = {**sinks, "model.seq": 640, "model.vocabulary": 40, "model.ffn": 32}
    wide = {**sinks, **ODD, "model.seq": 203, "model.kv_heads": 1, "model.vocabulary": 40}
    mixture = {**sinks, "model.experts": 7, "model.top_k": 3, "model.expert_ffn": 72, "model.swiglu_limit": 7}
    odd_mixture = {**wide, "model.experts": 12, "model.top_k": 2, "model.expert_ffn": 88, "model.swiglu_limit": 0.5}
    shared = {**mixture, "model.experts": 8, "model.seq": 64}  # ranks have the experts between them
    plain = {"model.attention_sinks": True}
    full, passes = {"training.checkpoint": "full"}, {"training.micro_batches": 2}
    equal_heads, one_head = {"model.kv_heads": SMALL["model.heads"]}, {"model.kv_heads": 1}
    pair = {"ranks": 2, "expert_parallel": 2}
    for keys in [
        sinks, plain, {**long, **equal_heads}, {**long, **one_head, **full}, {**plain, "model.bias": "qkv", "model.batch": 3},
        {**wide, **full, "model.batch": 2}, {**sinks, **TITAN, "ranks": 2, **passes}, {**long, **TITAN, "ranks": 4, "mesh": "2x2"},
        {**sinks, "ranks": 2, "reshard_after_forward": False, "reduce_dtype": "f32"}, {**long, "training.frozen_layers": 1},
        {**sinks, "ranks": 2, "sharding": "ddp", **passes}, {**sinks, "training.loss_chunks": 7, "model.head_dim": 24},
        {**long, "training.checkpoint": "selective"}, {**wide, "training.checkpoint": "selective_alternate"},
        {"model.bias": True}, {"model.bias": True, **ODD, **TITAN, "ranks": 2, **full},
        mixture, {**mixture, **full}, {**mixture, **passes, "model.batch": 2}, {**odd_mixture, **full, **passes}, odd_mixture,
        {"model.bias": True, "model.experts": 8, "model.top_k": 3, "model.swiglu_limit": 2, "model.window": 0},
        {**mixture, **TITAN, "ranks": 2}, {**mixture, **TITAN, "ranks": 2, **full, **passes, "reshard_after_forward": False},
        {**odd_mixture, **TITAN, "ranks": 4}, {**mixture, **TITAN, "ranks": 4, "mesh": "2x2", "training.loss_chunks": 7},
        {**odd_mixture, "ranks": 2, "reduce_dtype": "f32", "model.head": "tied"},
        {**mixture, **TITAN, "ranks": 4, "model.experts": 3, "model.top_k": 2}, {**mixture, "training.frozen_layers": 2},
        {**mixture, "ranks": 2, "sharding": "ddp", **passes}, {**mixture, "training.optimizer": "foreach_adam"},
        {**odd_mixture, "training.checkpoint": "selective"}, {**mixture, "training.checkpoint": "selective_alternate"},
        {**mixture, **full, "training.checkpoint_every": 2, "training.clip_norm": 1.0, **TITAN, "ranks": 2},
        {**mixture, "model.router_bias_rate": 0.01, **TITAN, "ranks": 2},
        {**shared, **TITAN, **pair}, {**shared, **pair, **full, **passes, "ranks": 4},
        {**shared, **TITAN, "ranks": 4, "expert_parallel": 4, "training.frozen_layers": 1},
    ]:  # fmt: skip
        is_tied = keys.get("model.head") == "tied"  # see configurations_of_gemma
        yield "host", "torchtitan", keys
        yield "cuda_shapes", "torchtitan", {**keys, "model.head": "own"} if is_tied else keys
    gpt_oss = {
        **TITAN, **sinks, "model.layers": 24, "model.hidden": 2880, "model.heads": 64, "model.kv_heads": 8, "model.head_dim": 64,
        "model.window": 128, "model.experts": 32, "model.top_k": 4, "model.expert_ffn": 2880, "model.swiglu_limit": 7,
        "model.seq": 8192, "model.vocabulary": 201088,
    }  # fmt: skip
    larger = {**gpt_oss, "model.layers": 36, "model.experts": 128}
    for keys in [
        {**gpt_oss, "ranks": 8}, {**gpt_oss, "ranks": 64, **full}, {**larger, "ranks": 64, **full},
        {**larger, "ranks": 64, "expert_parallel": 16, **full, "training.loss_chunks": 8},
    ]:  # fmt: skip
        yield "cuda_shapes", "torchtitan", keys
