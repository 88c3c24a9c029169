"""Configurations of ranks that have the experts of a layer between them, for `torch_memory`. The tokens of a rank times top_k
are a multiple of the experts, so that an even choice gives equally many rows to each."""

from .configurations import ODD, TITAN


def configurations():
    """(operators, program, keys)"""
    mixture = {"model.experts": 8, "model.top_k": 3, "model.expert_ffn": 72, "model.seq": 64}
    wide = {**ODD, "model.experts": 12, "model.top_k": 2, "model.expert_ffn": 88, "model.seq": 78, "model.vocabulary": 40}
    biases = {"model.router": "sigmoid", "model.router_bias_rate": 0.01}
    groups = {"model.router": "sigmoid", "model.expert_groups": 4, "model.top_groups": 2}
    latents = {
        "model.kv_heads": 0, "model.head_dim": 24, "model.q_rank": 44, "model.kv_rank": 52, "model.rope_dim": 16,
        "model.value_dim": 32,
    }  # fmt: skip
    full, passes = {"training.checkpoint": "full"}, {"training.micro_batches": 2}
    in_f32 = {"training.param_dtype": "f32", "training.moments": "f32"}
    pair, pairs = {"ranks": 2, "expert_parallel": 2}, {"ranks": 4, "expert_parallel": 2}
    all_four, replicas = {"ranks": 4, "expert_parallel": 4}, {"ranks": 4, "mesh": "2x2", "expert_parallel": 2}
    few = {"model.experts": 2, "model.top_k": 1}
    for keys in [
        {**mixture, **pair}, {**mixture, **TITAN, **pairs}, {**mixture, **TITAN, **full, **all_four, **passes},
        {**mixture, **full, **pair, "model.batch": 2}, {**mixture, **TITAN, **replicas}, {**mixture, **TITAN, **few, **pairs},
        {**mixture, **pairs, "reduce_dtype": "f32", "reshard_after_forward": False, "model.dense_layers": 1},
        {**mixture, **TITAN, **biases, **pair}, {**mixture, **groups, **pairs, "model.shared_experts": 1},
        {**mixture, **pair, "model.head": "tied"}, {**mixture, **pair, "model.positions": "learned"},
        {**mixture, **in_f32, **pair}, {**mixture, **TITAN, **pair, "training.loss_chunks": 4},
        {**mixture, **latents, **TITAN, **pairs, "model.shared_experts": 1, "training.checkpoint": "selective"},
        {**mixture, **pair, "training.checkpoint": "selective_alternate", "model.batch": 2},
        {**mixture, **pair, "training.frozen_layers": 1}, {**mixture, **TITAN, **pairs, "training.frozen_layers": 2},
        {**mixture, **TITAN, **pairs, **full, "training.checkpoint_every": 2, "training.clip_norm": 1.0},
        {**wide, **TITAN, **all_four}, {**wide, **pairs, **full, **passes, "model.dense_layers": 2},
        {**wide, **replicas, **passes, "reduce_dtype": "f32"}, {**wide, **TITAN, **pair, "training.optimizer": "foreach_adam"},
    ]:  # fmt: skip
        is_tied = keys.get("model.head") == "tied"  # see configurations_of_gemma
        yield "host", "torchtitan", keys
        yield "cuda_shapes", "torchtitan", {**keys, "model.head": "own"} if is_tied else keys
    deepseek = {
        **TITAN, "model.layers": 5, "model.hidden": 7168, "model.heads": 128, "model.kv_heads": 0, "model.ffn": 18432,
        "model.head_dim": 128, "model.q_rank": 1536, "model.kv_rank": 512, "model.rope_dim": 64, "model.value_dim": 128,
        "model.seq": 4096, "model.vocabulary": 129280, "model.experts": 256, "model.top_k": 8, "model.expert_ffn": 2048,
        "model.shared_experts": 1, "model.router": "sigmoid", "model.router_scale": 2.5, "model.dense_layers": 3,
    }  # fmt: skip
    for keys in [
        {"ranks": 256, "expert_parallel": 32}, {"ranks": 512, "mesh": "2x256", "expert_parallel": 32, **full},
        {"ranks": 64, "expert_parallel": 64},
    ]:  # fmt: skip
        yield "cuda_shapes", "torchtitan", {**deepseek, **keys}
