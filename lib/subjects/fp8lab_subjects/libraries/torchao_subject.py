"""Subject `torchao`: float8 linear layers over FSDP2, by torchao.float8's public functions."""

from ..cells import BF16
from .torch_subject import TorchSubject
from ..versions import version_of

PRELOADED = ("torchao.float8",)


class TorchaoSubject(TorchSubject):
    """`quantized_weights` means torchao's float8 all-gather: shards stay in 16 bits and travel in eight."""

    def make_model(self):
        built = super().make_model()
        if self.cell.recipe == BF16:
            return built
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig(
            enable_fsdp_float8_all_gather=self.cell.quantized_weights,
            emulate=self.device.type == "cpu",
        )
        return convert_to_float8_training(built, config=config)

    def sharded(self, built):
        if self.device.type == "cpu":
            from . import byte_gather

            byte_gather.install(built)

    def stepped(self, built):
        if self.cell.quantized_weights:
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

            precompute_float8_dynamic_scale_for_fsdp(built)

    def notes(self):
        return [*super().notes(), f"torchao {version_of('torchao')}"]


def make(cell, device):
    return TorchaoSubject(cell, device)
