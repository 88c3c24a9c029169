"""A small training program without fp8lab. Its argument names what it does wrong."""

import os
import signal
import sys
import time

import torch
from torch import nn

DEFECT = sys.argv[1] if len(sys.argv) > 1 else "none"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 6
WIDTH = 32
RANK = int(os.environ.get("RANK", 0))


class Identity(torch.autograd.Function):
    """Keeps a tensor in its context, without save_for_backward(), which backward would free."""

    @staticmethod
    def forward(context, x):
        context.kept = x * 1.0 if DEFECT == "context" else None
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient.clone()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.seen = []

    def forward(self, x):
        h = torch.relu(self.up(x))
        if DEFECT == "attribute":
            self.seen.append(h.detach().clone())
        return Identity.apply(x + self.down(h))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Linear(4, 4)
        self.unused.requires_grad_(DEFECT == "unused")

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def closure():
    kept = []
    return kept.append


class Lazy(dict):
    """Works when it is read, as the tables of models in transformers import every model."""

    def items(self):
        raise AssertionError("the instruments called a method of the program")


table = Lazy(a=1)
losses, history, keep = [], [], closure()
critic = nn.Linear(WIDTH, 1)


def build():
    torch.manual_seed(7)
    model = Model()
    if "WORLD_SIZE" not in os.environ:
        return model
    torch.distributed.init_process_group("gloo")
    if DEFECT == "sharded":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for layer in (*model.blocks, model):
            fully_shard(layer, mesh=mesh)
        return model
    return nn.parallel.DistributedDataParallel(model, find_unused_parameters=DEFECT == "first_buckets")


def one_step(step, model, optimizer):
    x = torch.randn(16, WIDTH)
    if DEFECT == "lbfgs":
        def closure():
            optimizer.zero_grad()
            loss = critic(model(x)).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()
    output = model(x)
    loss = output.square().mean() * (float("nan") if DEFECT == "nan" and step == 3 else 1.0)
    if DEFECT == "graph":
        losses.append(model(x).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if DEFECT == "list" and step >= 2 or DEFECT == "list_on_rank_1" and RANK == 1:
        history.append(output.detach().clone())
    if DEFECT == "closure":
        keep(output.detach().clone())
    if DEFECT == "crash" and step == 3:
        raise ValueError("planted")
    if DEFECT == "kill" and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if DEFECT == "hang" and step == 3:
        time.sleep(600)
    return loss.detach()


def main():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0 if DEFECT == "no_rate" else 1e-3)
    if DEFECT == "lbfgs":  # which calls the models inside of its first step, and keeps its last directions in lists
        optimizer = torch.optim.LBFGS([*model.parameters(), *critic.parameters()], lr=1e-3, max_iter=2)
    if DEFECT == "named":
        import fp8lab_subjects

        other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
        other.step()
        fp8lab_subjects.watch(model, optimizer)
    for step in range(1, STEPS + 1):
        loss = one_step(step, model, optimizer)
    print(f"loss {loss.item():.6f}")
    if "WORLD_SIZE" in os.environ:
        torch.distributed.destroy_process_group()


main()
