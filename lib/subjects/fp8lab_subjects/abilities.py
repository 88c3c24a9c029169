"""What each library can honour of a cell. Imports no library, so that questions are answered at once."""

from .cells import BF16
from .versions import checked, version_of

# Layers that the worker builds of PyTorch's own modules.
TORCH_LAYERS = ("linear", "layernorm_linear", "layernorm_mlp", "multihead_attention", "transformer_layer")
ENGINE_LAYERS = (*TORCH_LAYERS, "grouped_linear")

TORCHAO_RECIPE = "current"  # one scale a tensor, from its own amax
ENGINE_RECIPES = ("delayed", "current", "block", "mxfp8")

# The oldest releases of which the worker knows that they have what it calls.
OLDEST = {"torch": (2, 6), "torchao": (0, 7), "transformer_engine": (2, 11)}

# What a version of the double names; see libraries/double_subject.py.
DEFECTS = (
    "leak_context", "leak_module", "extra_collective", "gather_f32", "frozen_weights", "wrong_rank", "crash", "raise",
    "hang",
)


# What the worker's own optimizer of PyTorch does, and Transformer Engine's does not.
OPTIMIZER_KEYS = {
    "training.learning_rate_schedule": "constant",
    "training.warmup_steps": 0,
    "training.decay_only_matrices": False,
    "training.beta1": 0.9,
    "training.beta2": 0.999,
    "training.clip_norm": 0,
}


def _no_language(cell):
    if cell.get("model.vocabulary", 0):
        return "model.vocabulary: the worker builds embedding and head of PyTorch alone"
    return ""


def _no_options(cell, library):
    for key, value in cell.config.items():
        if key.startswith("training.recipe_options.") and value is not None:
            return f"{key}: the worker builds recipes with {library}'s defaults"
    return ""


def _on_meta(cell):
    if cell.sharded and not cell.get("training.deferred_init", True):
        return "training.deferred_init: the worker makes PyTorch's modules without values, and fills each rank's shards"
    return ""


def _data(cell):
    if cell["training.data"] == "stress":
        return "training.data: stressed values are made by this program's runtime alone"
    return ""


def _layer(cell, layers, library):
    if cell["model.layer"] not in layers:
        return f"model.layer: {library} has no {cell['model.layer']}"
    return ""


def _no_fuser(cell, library):
    if cell.get("model.op_fuser", "none") != "none":
        return f"model.op_fuser: {library} has no fused chain of operations"
    return ""


def _torch_optimizer(cell):
    """The key of the optimizer that PyTorch cannot honour and why, or ""."""
    if cell["training.clip_norm"] and cell.sharded:
        return "training.clip_norm: the worker clips no gradients of sharded parameters"
    if cell["training.optimizer"] in ("none", "foreach_adam"):
        return ""  # foreach_adam cannot say of which type its moments are: PyTorch's are of the parameters' type
    master, moments = cell["training.master_weights"], cell["training.moments"]
    if master == "remainder":
        return "training.master_weights: PyTorch's Adam has no 16-bit remainders; f32 or none"
    kept = "f32" if master == "f32" else cell["training.param_dtype"]
    if moments != kept:
        return f"training.moments: PyTorch's Adam keeps moments in the type that it updates, here {kept}"
    return ""


def of_torch(cell):
    if cell.recipe != BF16:
        return (
            f"training.recipe: PyTorch alone trains in bf16, not {cell.recipe}; "
            "name subject torchao or transformer_engine"
        )
    return (
        _data(cell)
        or _layer(cell, TORCH_LAYERS, "PyTorch")
        or _no_fuser(cell, "PyTorch")
        or _on_meta(cell)
        or _torch_optimizer(cell)
    )


def of_torchao(cell):
    if cell.recipe not in (BF16, TORCHAO_RECIPE):
        return f"training.recipe: torchao's float8 training is `{TORCHAO_RECIPE}` (a scale a tensor, from its amax)"
    if cell.quantized_weights and not cell.sharded:
        return "training.quantized_weights: torchao keeps weights in 16 bits; sharded ones it can gather in FP8"
    if cell["training.param_dtype"] != "bf16":
        return "training.param_dtype: the worker builds torchao's layers in bf16"
    return (
        _data(cell)
        or _no_language(cell)
        or _no_options(cell, "torchao")
        or _layer(cell, TORCH_LAYERS, "torchao")
        or _no_fuser(cell, "torchao")
        or _on_meta(cell)
        or _torch_optimizer(cell)
    )


def _engine_optimizer(cell):
    """As _torch_optimizer(), for Transformer Engine's FusedAdam; its other optimizers are PyTorch's."""
    if cell["training.optimizer"] != "adam":
        return _torch_optimizer(cell)
    if cell["training.moments"] not in ("f32", "bf16", "f16"):
        return "training.moments: the worker gives Transformer Engine's FusedAdam moments of f32, bf16 or f16"
    if cell["training.master_weights"] == "remainder" and cell.quantized_weights:
        # Its masters of FP8 weights would be 16-bit zeros, and its kernel for FP8 weights asks for FP32 masters.
        return "training.master_weights: Transformer Engine's FusedAdam has no 16-bit remainders of FP8 weights; f32"
    for key, plain in OPTIMIZER_KEYS.items():
        if cell.get(key, plain) != plain:
            return f"{key}: the worker leaves it to Transformer Engine's FusedAdam as it is"
    return ""


def of_transformer_engine(cell):
    if cell["device"] != "cuda":
        return "device: Transformer Engine runs on GPUs alone; write `device: cuda`"
    if cell.recipe != BF16 and cell.recipe not in ENGINE_RECIPES:
        return f"training.recipe: the worker knows no {cell.recipe} of Transformer Engine"
    if cell.get("model.op_fuser", "none") == "mlp" and cell["model.layer"] != "layernorm_mlp":
        return "model.op_fuser: the worker builds Transformer Engine's fused chain for layernorm_mlp alone"
    if cell["model.layer"] == "grouped_linear" and cell.get("model.split", "even") != "even":
        return "model.split: the worker gives Transformer Engine's GroupedLinear groups of one size"
    if cell.get("model.bias") is not None:
        return "model.bias: the worker builds Transformer Engine's layers with the biases of their form"
    if cell.sharded and cell.get("training.deferred_init", False):
        return "training.deferred_init: the worker builds Transformer Engine's models in full on each rank"
    return (
        _engine_optimizer(cell)
        or _no_options(cell, "Transformer Engine")
        or _data(cell)
        or _no_language(cell)
        or _layer(cell, ENGINE_LAYERS, "Transformer Engine")
    )


def of_double(cell):
    if cell.version and cell.version not in DEFECTS:
        return f"versions: the double has no defect {cell.version}; it has {', '.join(DEFECTS)}"
    return of_torch(cell)


ABILITIES = {"torch": of_torch, "torchao": of_torchao, "transformer_engine": of_transformer_engine, "double": of_double}


def too_old(subject):
    """The reason why an installed release is too old, or ""."""
    for package, oldest in OLDEST.items():
        if package in (subject, "torch") and not checked(version_of(package), oldest):
            return f"{package} {version_of(package)} is older than {oldest[0]}.{oldest[1]}"
    return ""


def unsupported(cell):
    """The key that a library cannot honour and why, or ""."""
    return too_old(cell.subject) or ABILITIES[cell.subject](cell)
