"""A small training program. Arguments: a defect, the block that has it, and the step from which on it has it."""

import os
import signal
import sys

import torch
from torch import nn

DEFECT, BLOCK, STEP = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
WIDTH, STEPS = 16, 3
step = 1


def planted(defect, block):
    return DEFECT == defect and BLOCK == block and step >= STEP


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context, x, block):
        context.block = block
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * (1.01 if planted("gradient", context.block) else 1.0), None


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = x + Scaled.apply(self.down(torch.relu(self.up(x))), self.number)
        return y * 1.01 if planted("output", self.number) else y


class Blocks(nn.Sequential):
    def forward(self, x, offset):
        return super().forward(x + offset)


def main():
    global step
    torch.manual_seed(3)
    model = Blocks(*(Block(number) for number in range(5)))
    if "WORLD_SIZE" in os.environ:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        if DEFECT == "killed" and step >= STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        offset = torch.full((WIDTH,), 0.11 if DEFECT == "keyword" and step >= STEP else 0.1)
        model(torch.randn(8, WIDTH), offset=offset).square().mean().backward()
        if DEFECT == "parameter" and step >= STEP:
            model[BLOCK].up.weight.grad.mul_(1.01)
        optimizer.step()
        if DEFECT == "weight" and step >= STEP:
            model[BLOCK].down.weight.data.mul_(1.01)
        optimizer.zero_grad()
    if "WORLD_SIZE" in os.environ:
        torch.distributed.destroy_process_group()


main()
