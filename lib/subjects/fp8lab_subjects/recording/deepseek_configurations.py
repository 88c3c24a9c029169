"""Configurations of what DeepSeek-V3 has, for `torch_memory`: latent attention, biases and groups of the choice of experts,
and mixtures under selective recomputation."""

from .configurations import ODD, TITAN


def configurations():
    """(operators, program, keys)"""
    yield from configurations_of_latents()
    yield from configurations_of_choices()
    yield from configurations_of_selected_mixtures()


def configurations_of_latents():
    """Multi-head latent attention. Keys and values of `equal` have one width, which flash attention requires."""
    small = {
        "model.kv_heads": 0, "model.head_dim": 24, "model.q_rank": 44, "model.kv_rank": 52, "model.rope_dim": 16,
        "model.value_dim": 32,
    }  # fmt: skip
    wide = {
        **ODD, "model.kv_heads": 0, "model.head_dim": 40, "model.q_rank": 68, "model.kv_rank": 36, "model.rope_dim": 8,
        "model.value_dim": 88, "model.seq": 203, "model.vocabulary": 40,
    }  # fmt: skip
    equal = {**small, "model.rope_dim": 8}
    full, passes = {"training.checkpoint": "full"}, {"training.micro_batches": 2}
    mixture = {
        "model.experts": 7, "model.top_k": 3, "model.expert_ffn": 72, "model.router": "sigmoid", "model.shared_experts": 1,
        "model.dense_layers": 1,
    }  # fmt: skip
    for program in ("worker", "torchtitan"):
        for keys in [
            small, wide, equal, {**small, "model.batch": 3}, {**wide, "model.batch": 2, "model.seq": 101}, {**small, **full},
            {**wide, **full, "model.batch": 2}, {**small, "training.checkpoint": "selective"},
            {**wide, "training.checkpoint": "selective_alternate"}, {**small, **passes, "model.head": "tied"},
            {**wide, **mixture}, {**small, **mixture, **full, "model.batch": 2}, {**small, **TITAN, "ranks": 2},
            {**wide, **TITAN, "ranks": 2, **passes, **mixture}, {**small, "ranks": 2, "sharding": "ddp"},
            {**small, "ranks": 2, "reshard_after_forward": False, "reduce_dtype": "f32"},
            {**small, **TITAN, "ranks": 4, "mesh": "2x2"}, {**wide, "training.frozen_layers": 2},
            {**small, "training.loss_chunks": 7, "training.optimizer": "foreach_adam"},
        ]:  # fmt: skip
            is_tied = keys.get("model.head") == "tied"  # see configurations_of_gemma
            yield "host", program, keys
            yield "cuda_shapes", program, {**keys, "model.head": "own"} if is_tied else keys
        in_f32 = {"training.param_dtype": "f32", "training.moments": "f32"}
        for keys in [{**small, **in_f32}, {**wide, **in_f32, "model.batch": 2, "model.seq": 77}, {**equal, **in_f32, **full}]:
            yield "host", program, {**keys, "model.value_dim": 28}
    layers = {**small, "model.vocabulary": 0, "training.loss": "mse"}
    for keys in [layers, {**layers, **full, "training.loss": "sum", "ranks": 2}]:
        yield "host", "worker", keys
        yield "cuda_shapes", "worker", keys
    deepseek = {
        **TITAN, "model.layers": 6, "model.hidden": 7168, "model.heads": 128, "model.kv_heads": 0, "model.ffn": 18432,
        "model.head_dim": 128, "model.q_rank": 1536, "model.kv_rank": 512, "model.rope_dim": 64, "model.value_dim": 128,
        "model.seq": 4096, "model.vocabulary": 129280, "model.experts": 256, "model.top_k": 8, "model.expert_ffn": 2048,
        "model.shared_experts": 1, "model.router": "sigmoid", "model.router_scale": 2.5, "model.dense_layers": 3,
    }  # fmt: skip
    for keys in [{"ranks": 64}, {"ranks": 256, **full}]:
        yield "cuda_shapes", "torchtitan", {**deepseek, **keys}


def configurations_of_choices():
    """Biases of the router's choice, and groups of experts."""
    mixture = {"model.experts": 15, "model.top_k": 4, "model.expert_ffn": 40, "model.router": "sigmoid", "model.seq": 149}
    biases, groups = {"model.router_bias_rate": 0.01}, {"model.expert_groups": 5, "model.top_groups": 2}
    both, full = {**mixture, **biases, **groups}, {"training.checkpoint": "full"}
    many = {**both, "model.experts": 344, "model.expert_groups": 8, "model.top_groups": 3, "model.expert_ffn": 8}
    in_f32 = {"training.param_dtype": "f32", "training.moments": "f32"}
    for program in ("worker", "torchtitan"):
        for keys in [
            {**mixture, **biases}, {**mixture, **groups, "model.batch": 2}, {**both, **full, "model.shared_experts": 1},
            many, {**many, **full, "model.dense_layers": 1}, {**many, **in_f32, "model.seq": 77},
            {**both, **TITAN, "ranks": 2, "training.micro_batches": 2}, {**both, "ranks": 2, "sharding": "ddp"},
            {**both, "training.frozen_layers": 1, "model.vocabulary": 40},
        ]:  # fmt: skip
            yield "host", program, keys
            yield "cuda_shapes", program, keys


def configurations_of_selected_mixtures():
    """Mixtures that keep what the router's and the shared experts' products return. No grouped product is kept."""
    mixture = {"model.experts": 7, "model.top_k": 3, "model.expert_ffn": 72, "model.seq": 149}
    shared = {"model.shared_experts": 2, "model.router": "sigmoid"}
    latents = {
        "model.kv_heads": 0, "model.head_dim": 24, "model.q_rank": 44, "model.kv_rank": 52, "model.rope_dim": 16,
        "model.value_dim": 32,
    }  # fmt: skip
    selective, alternate = ({"training.checkpoint": kind} for kind in ("selective", "selective_alternate"))
    for program in ("worker", "torchtitan"):
        for keys in [
            selective, alternate, {**shared, **selective, "model.dense_layers": 1}, {**shared, **alternate},
            {**shared, **alternate, **latents, "model.batch": 2},
            {**shared, **selective, **TITAN, "ranks": 2, "training.micro_batches": 2},
        ]:  # fmt: skip
            yield "host", program, {**mixture, **keys}
            yield "cuda_shapes", program, {**mixture, **keys}
