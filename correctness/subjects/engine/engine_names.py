"""Prints the runtime's names of Transformer Engine's parameters, next to the names in the worker's own modules.

Needs PyTorch, not Transformer Engine. Exits 1 if a parameter has no counterpart.
"""

import sys

import torch
from fp8lab_subjects import cells, model
from fp8lab_subjects.libraries.transformer_engine_subject import own_name

MLP = ("layer_norm_weight", "layer_norm_bias", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias")
LINEAR = ("weight", "bias")
LAYERNORM_LINEAR = ("layer_norm_weight", "layer_norm_bias", *LINEAR)
ATTENTION = (*(f"layernorm_qkv.{name}" for name in LAYERNORM_LINEAR), *(f"proj.{name}" for name in LINEAR))
FUSED = ("0.weight", "0.bias", "1.basic_ops.0.weight", "1.basic_ops.1.bias", "3.basic_ops.0.weight", "3.basic_ops.1.bias")
# What named_parameters() of Transformer Engine's layers gives, with biases.
ENGINE = {
    "linear": LINEAR,
    "layernorm_linear": LAYERNORM_LINEAR,
    "layernorm_mlp": MLP,
    "multihead_attention": ATTENTION,
    "transformer_layer": (
        *(f"self_attention.{name}" for name in ATTENTION),
        *(f"layernorm_mlp.{name}" for name in MLP),
    ),
}


def cell(layer, form):
    config = {
        "model.layer": layer, "model.form": form, "model.layers": 2, "model.hidden": 16, "model.heads": 2,
        "model.kv_heads": 1, "model.ffn": 32, "model.seq": 4, "model.batch": 1, "training.param_dtype": "bf16",
        "training.checkpoint": "none",
    }
    return cells.Cell("after", config, [], 0)


def has_bias(name):
    return name.endswith("bias") or name.endswith("beta")


wrong = 0
for layer, names in [*ENGINE.items(), ("fused", FUSED)]:
    for form in ("gpt", "llama"):
        built = model.build(cell("layernorm_mlp" if layer == "fused" else layer, form), torch.device("meta"))
        expected = sorted(model.own_name(name) for name, _ in built.named_parameters())
        seen = sorted(
            own_name(f"layers.{index}.inner.{name}", fused=layer == "fused")
            for index in range(2)
            for name in names
            if form == "gpt" or not has_bias(name)
        )
        if seen != expected:
            print(layer, form, "expected", expected, "but they are", seen)
            wrong += 1
if own_name("layers.1.inner.weight3") != "layers[1].experts[3].weight":
    print("grouped_linear:", own_name("layers.1.inner.weight3"))
    wrong += 1
sys.exit(wrong > 0)
