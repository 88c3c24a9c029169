"""The optimizer of a cell, by torch.optim.AdamW, Adam or SGD."""

import math

import torch

from .sharding import local

MOMENTS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def learning_rate(cell, step):
    """The rate of a step, by the rule of lib/optim/learning_rate.h."""
    rate, final = cell["training.learning_rate"], cell["training.final_learning_rate"]
    warmup = cell["training.warmup_steps"]
    if step < warmup:
        return rate * (step + 1) / (warmup + 1)
    if cell["training.learning_rate_schedule"] == "constant":
        return rate
    end = cell["training.decay_steps"] or cell["training.steps"]
    part = min(1.0, (step - warmup) / (end - warmup))
    return final + 0.5 * (1.0 + math.cos(math.pi * part)) * (rate - final)


def decay_groups(cell, parameters):
    """Groups of parameters that decay alike."""
    decay = cell["training.weight_decay"]
    if not cell["training.decay_only_matrices"]:
        return [{"params": parameters, "weight_decay": decay}]
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() == 1]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


class Scheduled:
    """An optimizer with a cell's learning rate and limit of the gradients' norm."""

    def __init__(self, cell, parameters, inner):
        self.cell, self.parameters, self.inner = cell, parameters, inner
        self.steps = 0

    @property
    def state(self):
        return self.inner.state

    def state_dict(self):
        return {"inner": self.inner.state_dict(), "steps": self.steps}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        self.steps = state["steps"]

    def step(self):
        for group in self.inner.param_groups:
            group["lr"] = learning_rate(self.cell, self.steps)
        self.steps += 1
        if self.cell["training.clip_norm"]:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.cell["training.clip_norm"])
        self.inner.step()


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

    def state_dict(self):
        return {"inner": self.inner.state_dict(), "masters": self.masters}

    @torch.no_grad()
    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        for master, saved in zip(self.masters, state["masters"], strict=True):
            master.copy_(saved)

    def step(self):
        for master, owner in zip(self.masters, self.owners, strict=True):
            master.grad = None if owner.grad is None else local(owner.grad).float()
        self.inner.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters, strict=True):
                parameter.copy_(master)
                master.grad = None


def make(cell, parameters):
    """The optimizer of the parameters that take a gradient, or None."""
    if cell["training.optimizer"] == "none":
        return None
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    rate = cell["training.learning_rate"]
    if cell["training.optimizer"] == "sgd":
        return Scheduled(cell, parameters, torch.optim.SGD(decay_groups(cell, parameters), lr=rate, foreach=True))
    kind = torch.optim.AdamW if cell["training.decoupled_decay"] else torch.optim.Adam
    algorithm = {"adam": "fused", "foreach_adam": "foreach"}[cell["training.optimizer"]]

    def over(tensors):
        inner = kind(
            decay_groups(cell, tensors),
            lr=rate,
            betas=(cell["training.beta1"], cell["training.beta2"]),
            **{algorithm: True},
        )
        return Scheduled(cell, tensors, inner)

    return MasterWeights(parameters, over) if cell["training.master_weights"] == "f32" else over(parameters)
