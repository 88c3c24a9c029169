"""The optimizer of a cell, by torch.optim.AdamW or Adam."""

import torch

from .sharding import local

MOMENTS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class MasterWeights:
    """An optimizer over FP32 copies of BF16 parameters, which are rounded back after every step."""

    def __init__(self, parameters, make):
        self.owners = parameters
        self.parameters = [local(parameter) for parameter in parameters]
        self.masters = [parameter.detach().float() for parameter in self.parameters]
        self.inner = make(self.masters)

    @property
    def state(self):
        return self.inner.state

    def step(self):
        for master, owner in zip(self.masters, self.owners, strict=True):
            master.grad = None if owner.grad is None else local(owner.grad).float()
        self.inner.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters, strict=True):
                parameter.copy_(master)
                master.grad = None


def make(cell, parameters):
    """The optimizer, or None."""
    if cell["training.optimizer"] == "none":
        return None
    kind = torch.optim.AdamW if cell["training.decoupled_decay"] else torch.optim.Adam
    algorithm = {"adam": "fused", "foreach_adam": "foreach"}[cell["training.optimizer"]]

    def over(tensors):
        return kind(
            tensors,
            lr=cell["training.learning_rate"],
            weight_decay=cell["training.weight_decay"],
            **{algorithm: True},
        )

    parameters = list(parameters)
    return MasterWeights(parameters, over) if cell["training.master_weights"] == "f32" else over(parameters)
