"""Subject `torchao`: linear layers and experts in eight bits over FSDP2, by torchao's public functions."""

import importlib

from ..cells import BF16
from .torch_subject import TorchSubject
from ..versions import version_of

PRELOADED = ("torchao.float8",)


def prepare(cell):
    """When this package is imported it reads the capability of the GPU, so only a process that uses none may import it before a fork."""
    if cell["device"] == "cpu" and (cell.routes or cell["training.recipe"] == "mxfp8"):
        importlib.import_module("torchao.prototype.moe_training")


class TorchaoSubject(TorchSubject):
    """`quantized_weights` means torchao's float8 all-gather: shards stay in 16 bits and travel in eight."""

    def make_model(self):
        built = super().make_model()
        if self.cell.recipe == BF16:
            return built
        if self.cell.recipe == "mxfp8":
            from . import torchao_experts

            torchao_experts.convert_linears(built, torchao_experts.config_of(self.cell, self.device))
        else:
            built = self.with_float8(built)
        if self.cell.routes:
            from . import torchao_experts

            torchao_experts.convert_experts(built, self.cell, self.device)
        return built

    def with_float8(self, built):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        from .torchao_experts import is_router

        config = Float8LinearConfig(
            enable_fsdp_float8_all_gather=self.cell.quantized_weights,
            emulate=self.device.type == "cpu",
        )
        return convert_to_float8_training(built, config=config, module_filter_fn=lambda _, name: not is_router(name))

    def sharded(self, built):
        # FSDP2 takes no gather of one's own for a layer with two groups, which gathers nothing in eight bits.
        if self.device.type == "cpu" and self.cell.expert_parallel == 1:
            from . import byte_gather

            byte_gather.install(built)

    def stepped(self, built):
        if self.cell.quantized_weights:
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

            precompute_float8_dynamic_scale_for_fsdp(built)

    def notes(self):
        out = [*super().notes(), f"torchao {version_of('torchao')}"]
        if self.cell.routes and self.cell.recipe != BF16:
            from .torchao_experts import SCALES

            out.append(f"torchao's grouped products of experts: {SCALES[self.cell.recipe]}")
        return out


def make(cell, device):
    return TorchaoSubject(cell, device)
