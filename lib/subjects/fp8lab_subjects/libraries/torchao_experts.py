"""torchao's grouped products for the experts of mixtures, and its MXFP8 products for all other ones.

quantize_() wraps the weights of experts in a class that puts its own product in the place of torch._grouped_mm. Forward and
backward cast both operands each time, and keep neither cast.
"""

import torch

from ..layers import experts
from ..model import ExpertMlp

# Rows of a group are a multiple of these: what a product of eight bits reads at once, and a block of MXFP8.
ROW_MULTIPLES = {"current": 16, "mxfp8": 32}
SCALES = {
    "current": "a scale a row of each operand, a power of two (FP8 rowwise), in E4M3",
    "mxfp8": "a scale for each 32 values (MXFP8), rounded up, in E4M3",
}


def config_of(cell, device):
    """torchao's configuration of the cell's recipe. It emulates MXFP8 on the host, and FP8 nowhere."""
    from torchao.prototype.moe_training import config

    if cell.recipe == "current":
        return config.Float8TrainingOpConfig.from_recipe(config.Float8TrainingRecipe.FP8_ROWWISE)
    kind = config.MXFP8TrainingRecipe
    emulated = device.type == "cpu"
    return config.MXFP8TrainingOpConfig.from_recipe(kind.MXFP8_EMULATED_RCEIL if emulated else kind.MXFP8_RCEIL)


def is_router(name):
    """The router keeps 16 bits, as in the built-in runtime and in torchtitan's configurations."""
    return name.rpartition(".")[2] == "router"


def convert_linears(built, config):
    """MXFP8Linear in the place of every linear layer but routers."""
    from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear

    for name, module in list(built.named_modules()):
        for child_name, child in list(module.named_children()):
            if not isinstance(child, torch.nn.Linear) or is_router(f"{name}.{child_name}"):
                continue
            one = MXFP8Linear(
                child.in_features,
                child.out_features,
                bias=child.bias is not None,
                device="meta",
                kernel_preference=config.kernel_preference,
                scale_calculation_mode=config.scale_calculation_mode,
                wgrad_with_hp=config.wgrad_with_hp,
            )
            one.weight, one.bias = child.weight, child.bias
            setattr(module, child_name, one)


def convert_experts(built, cell, device):
    """Gives experts torchao's products, and their groups the rows that these need."""
    from torchao.quantization import quantize_

    mixtures = [module for module in built.modules() if isinstance(module, ExpertMlp)]
    for mixture in mixtures:
        for weight in mixture.expert_weights():
            if not experts.takes_groups(weight, device):
                raise RuntimeError(f"torch._grouped_mm takes no weight of {tuple(weight.shape)} on {device}")
        mixture.row_multiple = ROW_MULTIPLES[cell.recipe]
    is_expert = lambda module, _: isinstance(module, experts.ExpertWeights)  # noqa: E731
    quantize_(built, config_of(cell, device), filter_fn=is_expert)
