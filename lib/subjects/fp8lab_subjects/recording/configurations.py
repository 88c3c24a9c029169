"""The configurations of which `torch_memory` records a run each: operators, program, and the keys that differ from SMALL."""

# Sizes without common factors that shards must divide, and models' own sizes on shapes.
SMALL = {
    "model.form": "llama", "model.layers": 3, "model.hidden": 96, "model.heads": 6, "model.kv_heads": 2,
    "model.ffn": 208, "model.seq": 56, "model.batch": 1, "model.vocabulary": 344, "training.loss": "cross_entropy",
    "training.optimizer": "adam", "training.moments": "bf16", "training.steps": 2,
}  # fmt: skip
MASTERS = {"training.master_weights": "f32", "training.moments": "f32"}
TITAN = {**MASTERS, "reduce_dtype": "f32"}
ODD = {
    "model.layers": 5, "model.hidden": 120, "model.heads": 5, "model.kv_heads": 5, "model.ffn": 328, "model.seq": 72,
    "model.vocabulary": 1001,
}  # fmt: skip
LLAMA3_8B = {
    "model.layers": 32, "model.hidden": 4096, "model.heads": 32, "model.kv_heads": 8, "model.ffn": 14336,
    "model.seq": 8192, "model.vocabulary": 128256,
}  # fmt: skip

DEFAULTS = {
    "device": "cpu", "subject": "torch", "ranks": 1, "mesh": None, "expert_parallel": 1, "context_parallel": 1, "sharding": None, "reduce_dtype": None,
    "reshard_after_forward": True, "model.layer": "transformer_layer", "model.head": "own", "model.positions": None,
    "model.head_dim": 0, "model.qk_norm": False, "model.bias": None, "model.init_std": 0.02,
    "model.scaled_residuals": False, "model.experts": 4, "model.top_k": 0, "model.expert_ffn": 0,
    "model.shared_experts": 0, "model.dense_layers": 0, "model.router": "softmax", "model.router_scale": 1.0,
    "model.kv_rank": 0, "model.q_rank": 0, "model.rope_dim": 0, "model.value_dim": 0, "model.expert_groups": 0,
    "model.top_groups": 0, "model.router_bias_rate": 0.0,
    "training.micro_batches": 1,
    "training.learning_rate": 1e-3, "training.learning_rate_schedule": "constant", "training.warmup_steps": 0,
    "training.final_learning_rate": 0.0, "training.decay_steps": 0, "training.beta1": 0.9, "training.beta2": 0.999,
    "training.weight_decay": 0.0, "training.decoupled_decay": True, "training.decay_only_matrices": False,
    "training.clip_norm": 0.0, "training.master_weights": "none", "training.param_dtype": "bf16",
    "training.recipe": "bf16", "training.quantized_weights": False, "training.checkpoint": "none",
    "training.keep_loss": True, "training.seed": 1,
}  # fmt: skip


def configurations():
    """(operators, program, keys)"""
    from . import (  # which read the constants above
        deepseek_configurations,
        dispatch_configurations,
        gpt_oss_configurations,
        sequence_configurations,
    )

    one_rank = [
        {}, {"model.batch": 3}, {"training.checkpoint": "full"}, ODD, {**ODD, **MASTERS},
        {"model.form": "gpt", "model.kv_heads": 6}, {**MASTERS, "training.micro_batches": 2},
        {"training.param_dtype": "f32", "training.moments": "f32", "training.optimizer": "foreach_adam"},
        {"training.optimizer": "none", "model.vocabulary": 40, "model.seq": 144},
    ]  # fmt: skip
    sharded = [
        {"ranks": 2}, {"ranks": 2, "reduce_dtype": "f32", "training.checkpoint": "full"},
        {"ranks": 2, "reshard_after_forward": False, "model.batch": 2},
        {"ranks": 2, **TITAN, "training.micro_batches": 2}, {"ranks": 2, **ODD, **TITAN},
        {"ranks": 2, "model.form": "gpt", "model.kv_heads": 6, "model.seq": 24},
    ]  # fmt: skip
    for keys in one_rank + sharded:
        yield "host", "worker", keys
        yield "cuda_shapes", "worker", keys
    for keys in [{}, {"training.checkpoint": "full", "model.batch": 2}, ODD]:
        yield "host", "torchtitan", keys
        yield "cuda_shapes", "torchtitan", keys
    for keys in [*sharded, {"ranks": 2, **TITAN}, {"ranks": 2, **TITAN, "model.seq": 200}]:
        yield "host", "torchtitan", keys
    hsdp = [
        {"ranks": 4, "mesh": "2x2", **TITAN}, {"ranks": 4, "mesh": "2x2", "reduce_dtype": "f32"},
        {"ranks": 4, "mesh": "2x2", "training.micro_batches": 2}, {"ranks": 2, "mesh": "2x1"},
    ]  # fmt: skip
    for keys in hsdp:
        for program in ("worker", "torchtitan"):
            yield "host", program, keys
            yield "cuda_shapes", program, keys
    yield "cuda_shapes", "torchtitan", {**TITAN, "reduce_dtype": "bf16", "ranks": 16, "mesh": "2x8"}
    for count in (2, 8):
        for keys in [
            TITAN, {**TITAN, **ODD}, {**TITAN, "training.checkpoint": "full", "model.seq": 200},
            {**TITAN, "training.micro_batches": 2, "reshard_after_forward": False}, {**TITAN, "model.head": "tied"},
            {**TITAN, "model.form": "gpt", "model.kv_heads": 6}, {"model.vocabulary": 3000},
        ]:  # fmt: skip
            yield "cuda_shapes", "torchtitan", {**keys, "ranks": count}
    for keys in [{"ranks": 8}, {"ranks": 64}, {"ranks": 8, "training.checkpoint": "full"},
                 {"ranks": 64, "mesh": "8x8"}]:  # fmt: skip
        yield "cuda_shapes", "torchtitan", {**LLAMA3_8B, **TITAN, **keys}
    yield from configurations_of_layers()
    yield from configurations_of_attention()
    yield from configurations_of_gemma()
    yield from torchao_configurations()
    yield from configurations_of_recomputation()
    yield from configurations_of_selection()
    yield from configurations_of_replicas()
    yield from configurations_of_chunked_losses()
    yield from configurations_of_experts()
    yield from configurations_of_frozen_layers()
    yield from configurations_of_frozen_mixtures()
    yield from deepseek_configurations.configurations()
    yield from dispatch_configurations.configurations()
    yield from sequence_configurations.configurations()
    yield from gpt_oss_configurations.configurations()


def configurations_of_layers():
    """Layers without embedding and head, and the limit of the gradients' norm."""
    layers = {"model.vocabulary": 0, "training.loss": "sum"}
    mlp = {**layers, "model.layer": "layernorm_mlp"}
    mse, full = {"training.loss": "mse"}, {"training.checkpoint": "full"}
    gpt = {"model.form": "gpt", "model.kv_heads": 6}
    of_layers = [
        layers, {**layers, **mse, "training.micro_batches": 2}, {**layers, **full}, {**layers, **gpt, **mse},
        {**layers, "ranks": 2, "reduce_dtype": "f32"}, {**layers, **mse, **MASTERS, "ranks": 2},
        mlp, {**mlp, **full, **mse}, {**mlp, **gpt}, {**mlp, "ranks": 2, "reduce_dtype": "f32"},
        {**layers, "training.clip_norm": 1.0}, {**layers, **MASTERS, "training.clip_norm": 1.0},
    ]  # fmt: skip
    for keys in of_layers:
        yield "host", "worker", keys
        yield "cuda_shapes", "worker", keys
    clipped = {**TITAN, "ranks": 2, "training.clip_norm": 1.0, "training.optimizer": "foreach_adam"}
    yield "host", "torchtitan", clipped
    yield "cuda_shapes", "torchtitan", clipped


def configurations_of_recomputation():
    """Every second or third layer recomputes its forward."""
    second, third = ({"training.checkpoint": "full", "training.checkpoint_every": every} for every in (2, 3))
    for operators in ("host", "cuda_shapes"):
        yield operators, "worker", {**second, "model.batch": 2}
        yield operators, "worker", {**third, **ODD, "model.form": "gpt"}
        yield operators, "worker", {**second, "model.vocabulary": 0, "training.loss": "mse", "ranks": 2}
        yield operators, "torchtitan", {**second, **TITAN, **ODD, "ranks": 2}
        yield operators, "torchtitan", {**third, **TITAN, "model.layers": 4, "training.micro_batches": 2, "ranks": 2}
    float8 = {"training.recipe": "current", "model.seq": 112, **TITAN, "training.quantized_weights": True, "ranks": 2}
    yield "cuda_shapes", "torchtitan", {**float8, **second}


def configurations_of_selection():
    """Layers that keep what products and attention return, and recompute the rest."""
    for kind in ("selective", "selective_alternate"):
        chosen = {"training.checkpoint": kind}
        for program in ("worker", "torchtitan"):
            for keys in [
                {}, {**ODD, "model.form": "gpt"}, {"model.qk_norm": True, "model.bias": "qkv", "model.batch": 2},
                {**TITAN, "training.micro_batches": 2, "ranks": 2}, {"training.checkpoint_every": 2, **ODD, "ranks": 2},
            ]:  # fmt: skip
                yield "host", program, {**chosen, **keys}
                yield "cuda_shapes", program, {**chosen, **keys}
        yield "cuda_shapes", "torchtitan", {**LLAMA3_8B, **TITAN, **chosen, "ranks": 8}


def configurations_of_chunked_losses():
    """Logits of a part of the tokens after the other."""
    in_f32 = {"training.param_dtype": "f32", "training.moments": "f32"}
    second = {"training.checkpoint": "full", "training.checkpoint_every": 2}
    for parts in (4, 7):
        chunks = {"training.loss_chunks": parts}
        for program in ("worker", "torchtitan"):
            for keys in [
                {}, {"training.micro_batches": 2, "model.seq": 112}, {**ODD, **in_f32, "model.seq": 84, **second},
                {"model.form": "gpt", "model.kv_heads": 6}, {"ranks": 2, "reduce_dtype": "f32"},
                {"ranks": 2, "training.micro_batches": 2, "model.batch": 2}, {"ranks": 2, **TITAN, "model.seq": 168},
                {"ranks": 2, **TITAN, "training.micro_batches": 2, "training.checkpoint": "selective"},
                {"ranks": 4, "mesh": "2x2", **TITAN},
            ]:  # fmt: skip
                yield "host", program, {**chunks, **keys}
                yield "cuda_shapes", program, {**chunks, **keys}
    eight = {"training.loss_chunks": 8, **TITAN, "ranks": 8}
    for keys in [{}, {"training.checkpoint": "selective_alternate"}, {"ranks": 64}]:
        yield "cuda_shapes", "torchtitan", {**LLAMA3_8B, **eight, **keys}
    for keys in [{}, {"training.quantized_weights": True}]:
        yield "cuda_shapes", "torchtitan", {"training.recipe": "current", **eight, "model.seq": 112, **keys}


def configurations_of_experts():
    """Mixtures of experts. In `many` the rows of experts are most of the memory, in `few` their weights."""
    many = {"model.experts": 5, "model.top_k": 2, "model.expert_ffn": 72, "model.seq": 331, "model.vocabulary": 40}
    few = {"model.experts": 7, "model.top_k": 3, "model.expert_ffn": 136}
    shared = {"model.shared_experts": 2, "model.router": "sigmoid", "model.router_scale": 2.5}
    full, second = {"training.checkpoint": "full"}, {"training.checkpoint": "full", "training.checkpoint_every": 2}
    in_f32 = {"training.param_dtype": "f32", "training.moments": "f32", "training.optimizer": "foreach_adam"}
    dense = {"model.dense_layers": 2, "model.layers": 5}
    for program in ("worker", "torchtitan"):
        for keys in [
            many, few, {**many, **shared}, {**few, **shared, "model.batch": 3}, {**many, **full}, {**many, **full, **shared},
            {**many, "model.top_k": 1}, {**few, "model.top_k": 4, "model.router": "sigmoid"}, {**many, **in_f32},
            {**few, **in_f32, **shared, "model.seq": 200}, {**many, **dense, **shared}, {**few, **dense, **second},
            {**few, "training.micro_batches": 2}, {**many, **ODD, "model.seq": 203, "model.qk_norm": True},
            {**few, **ODD, "model.expert_ffn": 0}, {**many, "ranks": 2}, {**few, **TITAN, "ranks": 2},
            {**few, "ranks": 2, "reshard_after_forward": False, "training.micro_batches": 2},
            {**many, **TITAN, **full, **shared, "ranks": 3}, {**few, **TITAN, **dense, "ranks": 4, "mesh": "2x2"},
            {**few, **TITAN, **second, "ranks": 3, "training.loss_chunks": 4}, {**few, "ranks": 2, "sharding": "ddp"},
            {**many, **shared, "model.experts": 3, "ranks": 4, "model.head": "tied"},
            {**few, **TITAN, "model.experts": 2, "model.top_k": 1, "ranks": 4},
            {**many, **full, "ranks": 4, "mesh": "2x2", "reduce_dtype": "f32", "training.loss_chunks": 4, "model.seq": 204},
            {**many, **TITAN, "model.experts": 2, "ranks": 4, "mesh": "1x4"},
        ]:  # fmt: skip
            yield "host", program, keys
            yield "cuda_shapes", program, keys
        yield "host", program, {**few, **full, **shared, "model.head": "tied", "training.micro_batches": 3}
    layers = {"model.vocabulary": 0, "training.loss": "mse"}
    mlp = {**layers, "model.layer": "layernorm_mlp"}
    for keys in [
        {**many, **layers}, {**few, **layers, "training.loss": "sum"}, {**many, **layers, **full, "ranks": 2},
        {**many, **mlp}, {**many, **mlp, **shared, **full}, {**many, **mlp, **shared, "ranks": 2},
    ]:  # fmt: skip
        yield "host", "worker", keys
        yield "cuda_shapes", "worker", keys
    mixtral = {**LLAMA3_8B, "model.experts": 8, "model.top_k": 2, "model.vocabulary": 32000, **TITAN}
    qwen3 = {
        **LLAMA3_8B, **TITAN, "model.layers": 48, "model.hidden": 2048, "model.kv_heads": 4, "model.head_dim": 128,
        "model.qk_norm": True, "model.vocabulary": 151936, "model.experts": 128, "model.top_k": 8, "model.expert_ffn": 768,
    }  # fmt: skip
    for keys in [
        {**mixtral, "ranks": 8}, {**mixtral, "ranks": 64, **full}, {**qwen3, "ranks": 64}, {**qwen3, "ranks": 64, **full},
    ]:  # fmt: skip
        yield "cuda_shapes", "torchtitan", keys


def configurations_of_frozen_layers():
    """Layers at the start, and the embedding, that take no gradient."""
    one, two, all_three = ({"training.frozen_layers": count} for count in (1, 2, 3))
    layers = {"model.vocabulary": 0, "training.loss": "mse"}
    mlp = {**layers, "model.layer": "layernorm_mlp"}
    gpt = {"model.form": "gpt", "model.kv_heads": 6}
    in_f32 = {"training.param_dtype": "f32", "training.moments": "f32"}
    full, ddp = {"training.checkpoint": "full"}, {"ranks": 2, "sharding": "ddp"}
    passes, chunks = {"training.micro_batches": 2}, {"training.loss_chunks": 7}
    for keys in [
        one, {**two, **ODD, **MASTERS}, {**two, **gpt, "model.batch": 3}, {**all_three, **in_f32}, all_three,
        {**two, **in_f32, "model.seq": 200}, {**two, **passes, "model.head": "tied"},
        {**one, **full, **ODD, "training.checkpoint_every": 2}, {**two, "training.checkpoint": "selective"},
        {**two, **chunks, "model.batch": 3}, {**all_three, **chunks, "model.head": "tied"},
        {**one, **MASTERS, "training.clip_norm": 1.0}, {**one, "training.optimizer": "foreach_adam", **gpt},
        {**two, "ranks": 2}, {**two, **TITAN, "ranks": 2, **passes}, {**one, **ODD, **TITAN, "ranks": 2, **full},
        {**two, "ranks": 2, "reshard_after_forward": False, "reduce_dtype": "f32", **passes},
        {**all_three, **TITAN, "ranks": 2}, {**all_three, **TITAN, "ranks": 2, **gpt, **passes},
        {**two, **TITAN, "ranks": 4, "mesh": "2x2"}, {**one, **ODD, "ranks": 2, "mesh": "2x1"},
        {**one, **TITAN, "ranks": 2, **chunks}, {**two, "ranks": 2, "model.head": "tied", **TITAN},
        {**one, "ranks": 2, **TITAN, "training.checkpoint": "selective_alternate"},
        {**two, **ddp, "model.head": "tied"}, {**one, **ddp, **in_f32, **passes}, {**all_three, **ddp, **gpt},
    ]:  # fmt: skip
        for program in ("worker", "torchtitan"):
            if program == "torchtitan" and keys.get("training.master_weights") == "f32" and "ranks" not in keys:
                continue  # its masters are the parameters that FSDP2 shards
            yield "host", program, keys
            yield "cuda_shapes", program, keys
    for keys in [
        {**one, **layers}, {**two, **mlp, **full}, {**two, **mlp, **gpt, "training.loss": "sum"},
        {**one, **layers, **in_f32, "training.loss": "sum"}, {**two, **layers, **TITAN, "ranks": 2, "model.batch": 2},
        {**one, **mlp, "ranks": 2, "reduce_dtype": "f32"}, {**one, **layers, **ddp, **gpt},
        {**one, **layers, "training.checkpoint": "selective", "ranks": 2, "reshard_after_forward": False},
    ]:  # fmt: skip
        yield "host", "worker", keys
        yield "cuda_shapes", "worker", keys
    for keys in [{}, full, {"ranks": 64}]:
        yield "cuda_shapes", "torchtitan", {**LLAMA3_8B, **TITAN, "ranks": 8, "training.frozen_layers": 24, **keys}
    float8 = {"training.recipe": "current", "model.seq": 112, **two}
    for program in ("worker", "torchtitan"):
        for keys in [{}, {**TITAN, "ranks": 2}, {**TITAN, "ranks": 2, "training.quantized_weights": True, **full}]:
            yield "cuda_shapes", program, {**float8, **keys}


def configurations_of_frozen_mixtures():
    mixture, frozen = {"model.experts": 8, "model.top_k": 2, "model.expert_ffn": 72, "model.seq": 56}, {"training.frozen_layers": 1}
    both = {**mixture, **frozen}
    shared = {"model.shared_experts": 1, "model.router": "sigmoid", "model.dense_layers": 1}
    for operators in ("host", "cuda_shapes"):
        for program, keys in [
            ("worker", both), ("torchtitan", both), ("torchtitan", {**mixture, "training.frozen_layers": 2, **shared}),
            ("torchtitan", {**both, "training.checkpoint": "full"}), ("worker", {**both, **TITAN, "ranks": 2}),
            ("torchtitan", {**mixture, "training.frozen_layers": 2, **TITAN, "ranks": 2}),
            ("worker", {**both, "ranks": 2, "sharding": "ddp"}),
            ("worker", {**both, "model.vocabulary": 0, "training.loss": "mse"}),
            ("torchtitan", {**both, "training.loss_chunks": 4}),
        ]:  # fmt: skip
            yield operators, program, keys


def configurations_of_replicas():
    """DistributedDataParallel. Gradients of the last two have several buckets, others one."""
    ddp = {"ranks": 2, "sharding": "ddp"}
    gpt = {"model.form": "gpt", "model.kv_heads": 6}
    in_f32 = {"training.param_dtype": "f32", "training.moments": "f32"}
    large = {"model.hidden": 384, "model.vocabulary": 5000, "model.ffn": 1024, "model.seq": 24}
    for keys in [
        {}, {"training.micro_batches": 2}, {**ODD, **in_f32}, {**gpt, "training.checkpoint": "full", "ranks": 3},
        {**gpt, "model.head": "tied", "training.micro_batches": 3, "training.steps": 3},
        {"training.optimizer": "none", "model.seq": 144}, {**in_f32, **large, "training.checkpoint": "full"}, large,
    ]:  # fmt: skip
        for program in ("worker", "torchtitan"):
            for operators in ("host", "cuda_shapes"):
                yield operators, program, {**ddp, **keys}
    layers = {**ddp, "model.vocabulary": 0, "training.loss": "mse"}
    for keys in [layers, {**layers, **MASTERS, "training.clip_norm": 1.0, "training.micro_batches": 2}]:
        yield "host", "worker", keys
        yield "cuda_shapes", "worker", keys
    llama = {**LLAMA3_8B, **ddp, "model.layers": 8, "training.micro_batches": 2}
    yield "cuda_shapes", "torchtitan", llama


def configurations_of_attention():
    """Heads of another width than hidden / heads, biases of only Q, K and V, norms of Q and K."""
    wide, narrow = {"model.head_dim": 40}, {"model.head_dim": 10}
    bias, norm, full = {"model.bias": "qkv"}, {"model.qk_norm": True}, {"training.checkpoint": "full"}
    gpt = {"model.form": "gpt", "model.kv_heads": 6}
    in_f32 = {"training.param_dtype": "f32", "training.moments": "f32"}
    for keys in [
        wide, {**narrow, **full}, {**wide, **gpt}, bias, {**bias, **ODD}, norm, {**norm, **full},
        {**norm, **wide, **ODD}, {**norm, **gpt}, {**norm, **wide, **in_f32}, {**norm, **wide, "ranks": 2},
        {**norm, **wide, "model.seq": 200, "model.vocabulary": 40},
        {**norm, **narrow, **full, **bias, **TITAN, "ranks": 2, "training.micro_batches": 2},
    ]:  # fmt: skip
        for program in ("worker", "torchtitan"):
            for operators in ("host", "cuda_shapes"):
                yield operators, program, keys


def configurations_of_gemma():
    """GeGLU, and embeddings times a factor. Heads are tied only on the host: a fake tensor adds the gradients of a weight
    that is used twice out of place, which no real one does."""
    gemma = {"model.form": "gemma", "model.head_dim": 40}
    for keys in [
        gemma, {**gemma, "training.checkpoint": "full", "model.batch": 3}, {**gemma, "training.checkpoint": "selective"},
        {**ODD, "model.form": "gemma"}, {**gemma, **TITAN, "ranks": 2, "training.micro_batches": 2},
        {"model.form": "gemma", "model.positions": "learned", "model.vocabulary": 40, "model.seq": 200},
    ]:  # fmt: skip
        for program in ("worker", "torchtitan"):
            yield "host", program, {**keys, "model.head": "tied"}
            yield "cuda_shapes", program, keys


def torchao_configurations():
    """Sizes that products on eight bits take. Only CUDA's operators: a CPU's products on eight bits are emulated."""
    small = {"training.recipe": "current", "model.seq": 112}
    odd = {
        **small, **ODD, "model.hidden": 144, "model.heads": 3, "model.kv_heads": 3, "model.ffn": 352, "model.seq": 80,
    }  # fmt: skip
    gathers = {"training.quantized_weights": True}
    one_rank = [
        {}, {"training.checkpoint": "full", "model.batch": 2}, {"model.form": "gpt", "model.kv_heads": 6},
        {"model.form": "gpt", "model.kv_heads": 6, "training.checkpoint": "full"}, {"training.micro_batches": 2},
        {"training.param_dtype": "f32", "training.moments": "f32", "training.optimizer": "foreach_adam"},
    ]  # fmt: skip
    sharded = [
        {}, TITAN, {**TITAN, "training.checkpoint": "full"}, {**TITAN, "training.micro_batches": 2}, gathers,
        {**TITAN, **gathers}, {**TITAN, **gathers, "training.checkpoint": "full"},
        {**TITAN, **gathers, "training.micro_batches": 2, "reshard_after_forward": False},
        {**TITAN, **gathers, "ranks": 4, "mesh": "2x2"},
    ]  # fmt: skip
    for program in ("worker", "torchtitan"):
        for keys in [*one_rank, *({"ranks": 2, **keys} for keys in sharded)]:
            yield "cuda_shapes", program, {**small, **keys}
        yield "cuda_shapes", program, odd
        yield "cuda_shapes", program, {**odd, **TITAN, **gathers, "ranks": 4}
        yield "cuda_shapes", program, {**small, "model.head_dim": 32, "model.bias": "qkv", "model.qk_norm": True}
    layers = {**small, "model.vocabulary": 0, "training.loss": "sum"}
    mlp = {**layers, "model.layer": "layernorm_mlp"}
    mse = {"training.loss": "mse", "ranks": 2, **gathers}
    for keys in [layers, {**layers, **mse}, mlp, {**mlp, **mse}]:
        yield "cuda_shapes", "worker", keys
    for keys in [{}, gathers, {"training.checkpoint": "full"}]:
        yield "cuda_shapes", "torchtitan", {"training.recipe": "current", **LLAMA3_8B, **TITAN, **keys, "ranks": 8}
