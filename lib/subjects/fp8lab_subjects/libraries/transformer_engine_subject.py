"""Subject `transformer_engine`: NVIDIA Transformer Engine's layers, by its public API, on a GPU.

Written for releases 2.9 to 2.20. Layers have other parameter names than the runtime's; NAMES translates them.
"""

import dataclasses
import math
import os
import re

import torch

from .. import model, sharding
from ..cells import BF16
from .torch_subject import TorchSubject
from ..versions import version_of

PRELOADED = ("transformer_engine.pytorch",)
FORKED_ON_GPUS_SINCE = (2, 20)  # measured with 2.20.2: the import does not open CUDA's driver
RECIPES = {
    "delayed": "DelayedScaling",
    "current": "Float8CurrentScaling",
    "block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
}

# Types of FusedAdam's moments, the first of which has eight bits.
EIGHT_BITS = (torch.uint8, torch.float16)
# Options of delayed scaling, and options of each tensor's cast.
RECIPE_OPTIONS = {
    "training.recipe_options.amax_history_length": "amax_history_len",
    "training.recipe_options.amax_algorithm": "amax_compute_algo",
    "training.recipe_options.margin": "margin",
}
TENSOR_OPTIONS = {
    "training.recipe_options.epsilon": "amax_epsilon",
    "training.recipe_options.power_of_two_scales": "power_2_scale",
}

# Parameters' names in Transformer Engine, after `layers.N.`, and their names in the runtime.
NAMES = (
    (r"^self_attention\.layernorm_qkv\.", "qkv."),
    (r"^layernorm_qkv\.", "qkv."),
    (r"^self_attention\.proj\.", "proj."),
    (r"^layernorm_mlp\.", "mlp."),
    (r"layer_norm_weight$", "norm.gamma"),
    (r"layer_norm_bias$", "norm.beta"),
    (r"\b(fc[12])_(weight|bias)$", r"\1.\2"),
    (r"^(weight|bias)(\d+)$", r"experts[\2].\1"),  # a parameter of GroupedLinear
)
# Names of the operations in a fused MLP: norm, fc1, activation, fc2.
FUSED_NAMES = {"0.weight": "norm.gamma", "0.bias": "norm.beta", "1": "fc1", "3": "fc2"}
BASIC_OPERATION = r"^basic_ops\.\d+\."  # a fused linear is a product and a bias


def own_name(name, fused=False):
    """The runtime's name of a parameter of EngineModel; `fused`: its layers are chains of the operation fuser."""
    prefix, _, rest = name.partition(".inner.")
    if not rest:
        return model.own_name(name)  # embedding, last norm and head
    index = prefix.split(".")[1]
    if fused:
        place, _, last = rest.partition(".")
        rest = FUSED_NAMES.get(rest) or f"{FUSED_NAMES[place]}.{re.sub(BASIC_OPERATION, '', last)}"
    else:
        for pattern, own in NAMES:
            rest = re.sub(pattern, own, rest)
    return f"layers[{index}].{rest}"


def recipe_of(cell):
    from transformer_engine.common import recipe

    options = {"fp8_dpa": True, "fp8_mha": bool(cell["training.fp8_mha"])} if cell["training.fp8_attention"] else {}
    for key, name in RECIPE_OPTIONS.items():
        if (value := cell.get(key)) is not None:
            options[name] = value
    if (name := cell.get("training.recipe_options.fp8_format")) is not None:
        options["fp8_format"] = recipe.Format[name.upper()]
    made = getattr(recipe, RECIPES[cell.recipe])(**options)
    parameters = {name: cell[key] for key, name in TENSOR_OPTIONS.items() if cell.get(key) is not None}
    for name in ("fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad") if parameters else ():
        setattr(made, name, dataclasses.replace(getattr(made, name), **parameters))
    return made


def prepare(cell):
    """Sets what the library reads when it is imported, and allows it to load the states that it saved here."""
    if not cell["training.fp8_attention_backward"]:
        os.environ["NVTE_FP8_DPA_BWD"] = "0"
    os.environ.setdefault("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", "1")


def deferred(cell):
    """True if layers get memory and values once they are sharded, as Transformer Engine draws them."""
    return cell.sharded and bool(cell.get("training.deferred_init", False))


def _common(cell):
    return {"params_dtype": model.dtype_of(cell), "device": "meta" if deferred(cell) else "cuda"}


def _norm(cell):
    return "LayerNorm" if cell.gpt else "RMSNorm"


def _fused_mlp(cell, te):
    hidden, bias = cell["model.hidden"], cell.gpt
    where = {"dtype": model.dtype_of(cell), "device": "meta" if deferred(cell) else "cuda"}
    norm = te.ops.LayerNorm if cell.gpt else te.ops.RMSNorm
    activation = {"gpt": te.ops.GELU, "llama": te.ops.SwiGLU, "gemma": te.ops.GEGLU}[cell["model.form"]]
    return te.ops.Sequential(
        norm(hidden, eps=model.EPSILON, **where),
        te.ops.Linear(hidden, cell.ffn * (1 if cell.gpt else 2), bias=bias, **where),
        activation(),
        te.ops.Linear(cell.ffn, hidden, bias=bias, **where),
    )


def make_layer(cell, te):
    """One layer of the model. Queries, keys and values are packed one after the other, as the runtime packs them."""
    hidden, bias, common = cell["model.hidden"], cell.gpt, _common(cell)
    kind = cell["model.layer"]
    if kind == "linear":
        return te.Linear(hidden, hidden, bias=bias, **common)
    if kind == "grouped_linear":
        return te.GroupedLinear(cell["model.experts"], hidden, hidden, bias=bias, **common)
    if kind == "layernorm_linear":
        return te.LayerNormLinear(hidden, hidden, eps=model.EPSILON, bias=bias, normalization=_norm(cell), **common)
    activation = {"gpt": "gelu", "llama": "swiglu", "gemma": "geglu"}[cell["model.form"]]
    if kind == "layernorm_mlp":
        if cell.get("model.op_fuser", "none") == "mlp":
            return _fused_mlp(cell, te)
        return te.LayerNormMLP(
            hidden, cell.ffn, eps=model.EPSILON, bias=bias, normalization=_norm(cell), activation=activation, **common
        )
    attention = {
        "num_gqa_groups": cell.kv_heads,
        "kv_channels": cell.head_dim,
        "attention_dropout": cell["model.dropout"],
        "layernorm_epsilon": model.EPSILON,
        "attn_mask_type": "causal",
        "normalization": _norm(cell),
        "bias": bias,
        "fuse_qkv_params": True,
        "qkv_weight_interleaved": False,
        **common,
    }
    if kind == "multihead_attention":
        return te.MultiheadAttention(hidden, cell["model.heads"], input_layernorm=True, **attention)
    attention["self_attn_mask_type"] = attention.pop("attn_mask_type")
    return te.TransformerLayer(
        hidden, cell.ffn, cell["model.heads"], hidden_dropout=cell["model.dropout"], activation=activation, **attention
    )


def attends(cell):
    return cell["model.layer"] in ("multihead_attention", "transformer_layer")


def group_rows(cell):
    """Tokens of each expert, as the runtime splits them (lib/nn/layer_config.cpp)."""
    tokens, experts = cell.tokens, cell["model.experts"]
    uneven = cell["model.split"] == "uneven"
    unit = math.gcd(tokens, 128) if uneven else 1
    shares = list(range(experts, 0, -1)) if uneven else [1] * experts
    if uneven and experts > 1:
        shares[1] = 0
    ends = [tokens // unit * sum(shares[: i + 1]) // sum(shares) for i in range(experts)]
    return [unit * (end - begin) for begin, end in zip([0, *ends], ends)]


class EngineLayer(torch.nn.Module):
    """A layer of Transformer Engine with the runtime's inputs: [tokens, hidden]."""

    def __init__(self, cell, layer):
        super().__init__()
        self.inner, self.cell = layer, cell

    def forward(self, x, positions=None, first=None):
        cell = self.cell
        micro_batch = {} if first is None else {"is_first_microbatch": first}
        if cell["model.layer"] == "grouped_linear":
            return self.inner(x, group_rows(cell))
        if not attends(cell):
            return self.inner(x, **micro_batch)
        shaped = x.view(cell["model.seq"], cell["model.batch"], cell["model.hidden"])
        out = self.inner(shaped, rotary_pos_emb=positions, **micro_batch)
        out = out[0] if isinstance(out, tuple) else out
        return out.reshape(x.shape)


class EngineModel(model.Model):
    """A chain of layers, each recomputed in backward if the cell requires it. Layers share one table of positions. The
    embedding, last norm and head of a language model are PyTorch's, in 16 bits."""

    def __init__(self, cell, te, device):
        super().__init__(cell, lambda of_layer, *_: EngineLayer(of_layer, make_layer(of_layer, te)), device, model.dtype_of(cell))
        self.te, self.seq = te, cell["model.seq"]
        self.recompute_every = cell.recompute_every
        self.rotary = te.RotaryPositionEmbedding(cell.head_dim) if attends(cell) and not cell.gpt else None

    def forward(self, x, first=None):
        """`first`: whether x is the first micro-batch of a step, if layers keep casts of their weights for all of them."""
        x = self.embed(x)
        positions = None if self.rotary is None else self.rotary(self.seq)
        for number, layer in enumerate(self.layers, 1):
            if self.recompute_every and number % self.recompute_every == 0 and torch.is_grad_enabled():
                x = self.te.checkpoint(layer, x, positions, first, use_reentrant=False)
            else:
                x = layer(x, positions, first)
        return self.output_of(x)


class TransformerEngineSubject(TorchSubject):
    quantizers = "Quantizer"

    def __init__(self, cell, device):
        super().__init__(cell, device)
        import transformer_engine.pytorch as te

        self.te = te
        self.recipe = None if cell.recipe == BF16 else recipe_of(cell)

    def _weights_in_eight_bits(self):
        """Transformer Engine's context in which layers make their weights; its name changed in 2.9."""
        make = getattr(self.te, "quantized_model_init", None) or self.te.fp8_model_init
        return make(enabled=self.cell.quantized_weights, recipe=self.recipe)

    def make_model(self):
        cell = self.cell
        with self._weights_in_eight_bits():
            built = EngineModel(cell, self.te, torch.device("meta") if deferred(cell) else self.device)
        if not deferred(cell):
            self._copy_initial_values(built)
        return built

    def own_name(self, name):
        return own_name(name, fused=self.cell.get("model.op_fuser", "none") == "mlp")

    @torch.no_grad()
    def _copy_initial_values(self, built):
        """Copies the runtime's initial values into the parameters, which Transformer Engine has made on the GPU."""
        for name, parameter in built.named_parameters():
            values = torch.empty(parameter.shape, dtype=self.dtype, device=self.device)
            model.fill_parameter(values, self.own_name(name), self.cell, 0)
            parameter.detach().copy_(values)

    def fill(self, built):
        """Values of layers that were sharded without any. Otherwise make_model() has filled the unsharded parameters, so
        that the shards of a weight have one scale. Under current scaling every shard would otherwise have a scale
        from its own rows until the optimizer's first step."""
        if deferred(self.cell):
            for module in built.modules():
                if hasattr(module, "reset_parameters"):
                    module.reset_parameters()

    def trained_weights(self, built):
        """FP8 weights as layers see them: FSDP2 gathers their data, and each rank scales all of it by the
        scale of its own shard. Ranks whose scales differ compute with different weights."""
        if not (self.cell.sharded and self.cell.quantized_weights):
            yield from super().trained_weights(built)
            return
        for layer in built.layers:
            with sharding.gathered(layer):
                for parameter in layer.parameters():
                    values = parameter.detach()
                    # In the parameter's nominal type, as full_tensor() gives the initial values.
                    yield values if type(values) is torch.Tensor else values.dequantize()

    def keeps_initial_values(self, name):
        return not self.cell.quantized_weights

    def make_optimizer(self, built):
        cell = self.cell
        if cell["training.optimizer"] != "adam":
            return super().make_optimizer(built)
        from transformer_engine.pytorch.optimizers import FusedAdam

        from ..optimizers import MOMENTS

        master = cell["training.master_weights"]
        # As in the runtime, squares have 16 bits if means have eight.
        first, second = EIGHT_BITS if cell["training.moments"] == "e4m3" else 2 * (MOMENTS[cell["training.moments"]],)
        return FusedAdam(
            built.parameters(),
            lr=cell["training.learning_rate"],
            weight_decay=cell["training.weight_decay"],
            adam_w_mode=bool(cell["training.decoupled_decay"]),
            master_weights=master != "none",
            store_param_remainders=master == "remainder",
            exp_avg_dtype=first,
            exp_avg_sq_dtype=second,
        )

    def forward(self, built, x):
        if self.recipe is None:
            return built(x)
        first = self.micro_batch == 0 if self.cell["training.cache_weights"] else None
        cast = getattr(self.te, "autocast", None)
        if cast is not None:
            with cast(enabled=True, recipe=self.recipe):
                return built(x, first)
        with self.te.fp8_autocast(enabled=True, fp8_recipe=self.recipe):
            return built(x, first)

    def notes(self):
        return [*super().notes(), f"transformer_engine {version_of('transformer_engine')}"]


def make(cell, device):
    return TransformerEngineSubject(cell, device)
