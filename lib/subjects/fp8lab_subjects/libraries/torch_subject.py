"""Subject `torch`: PyTorch's own layers, FSDP2 and AdamW, in BF16 or FP32."""

import torch

from .. import model, optimizers, sharding


class TorchSubject:
    """Builds and drives a model. Subjects of other libraries override what differs."""

    quantizers = ""  # how the names of the library's classes of quantizers end; "": it has none

    def __init__(self, cell, device):
        self.cell, self.device = cell, device
        self.dtype = model.dtype_of(cell)
        self.micro_batch = 0  # index in its step, set before each forward

    def make_model(self):
        """The model, on no device: values come from fill()."""
        return model.build(self.cell, torch.device("meta"))

    def sharded(self, built):
        """The model has just been sharded."""

    def own_name(self, name):
        return model.own_name(name)

    def fill(self, built):
        """Gives all parameters of this rank memory and their initial values."""
        built.to_empty(device=self.device)
        for name, parameter in built.named_parameters():
            values = sharding.local(parameter.detach())
            model.fill_parameter(values, self.own_name(name), self.cell, sharding.first_row(parameter))
        for buffer in built.buffers():
            buffer.zero_()

    def keeps_initial_values(self, name):
        """True if the parameter has the bits that fill() gave it: it is not kept in eight bits."""
        return True

    def trained_weights(self, built):
        """The unsharded values of each parameter after training, one after the other. Every rank runs through them."""
        for parameter in built.parameters():
            yield sharding.full(parameter.detach())

    def make_optimizer(self, built):
        return optimizers.make(self.cell, built.parameters())

    def forward(self, built, x):
        return built(x)

    def stepped(self, built):
        """The optimizer has changed the weights."""

    def notes(self):
        gpu = [f"on {torch.cuda.get_device_name(self.device)}"] if self.device.type == "cuda" else []
        return [f"torch {torch.__version__}", *gpu]


def make(cell, device):
    return TorchSubject(cell, device)
