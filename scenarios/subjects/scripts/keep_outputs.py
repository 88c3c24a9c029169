"""A small training program without fp8lab. With --keep tensor it keeps the output of every step, to plot
it later, and memory grows; with --keep mean it keeps a number."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--keep", choices=["tensor", "mean"], default="tensor")
options = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(options.width, options.width), nn.Tanh(), nn.Linear(options.width, options.width))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
history = []
for step in range(options.steps):
    inputs = torch.randn(32, options.width)
    outputs = model(inputs)
    loss = (outputs - inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    history.append(outputs.detach() if options.keep == "tensor" else outputs.mean().item())
print(f"{len(history)} outputs")
