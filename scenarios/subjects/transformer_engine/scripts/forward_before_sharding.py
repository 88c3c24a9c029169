"""Trains linear layers of Transformer Engine that FSDP2 shards: 16-bit weights under delayed scaling. With --order
forward-first the layers run once before fully_shard()."""

import argparse
import os

import torch
import torch.distributed as dist
import transformer_engine.pytorch as te
from torch.distributed.fsdp import fully_shard
from transformer_engine.common.recipe import DelayedScaling

parser = argparse.ArgumentParser()
parser.add_argument("--order", choices=["sharded-first", "forward-first"], required=True)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--hidden", type=int, default=4096)
parser.add_argument("--tokens", type=int, default=512)
options = parser.parse_args()

if "RANK" in os.environ:
    dist.init_process_group("nccl")
else:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
torch.cuda.set_device(dist.get_rank())
torch.manual_seed(0)
recipe = DelayedScaling()
inputs = torch.randn(options.tokens, options.hidden, device="cuda", dtype=torch.bfloat16)
model = torch.nn.Sequential(
    *[te.Linear(options.hidden, options.hidden, bias=False, params_dtype=torch.bfloat16) for _ in range(options.layers)]
)
if options.order == "forward-first":
    with torch.no_grad(), te.autocast(enabled=True, recipe=recipe):
        model(inputs)
for layer in (*model, model):
    fully_shard(layer)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(4):
    with te.autocast(enabled=True, recipe=recipe):
        loss = model(inputs).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():g}, is_fsdp2 {model[0].is_fsdp2}")
dist.destroy_process_group()
