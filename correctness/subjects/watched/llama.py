"""A small Llama without fp8lab, whose config is as Hugging Face's. Arguments: one | replicated | sharded, and
perhaps `twice` (two micro-batches a step), `autocast`, `sgd`, `compiled`, `frozen` (the embedding), or `nameless`
(a model without a config)."""

import sys
import types

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

HOW, OPTIONS = sys.argv[1], sys.argv[2:]
SIZES = {"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4,
         "num_key_value_heads": 4, "intermediate_size": 352, "vocab_size": 600, "max_position_embeddings": 256,
         "hidden_act": "silu", "rope_parameters": {"rope_type": "default"}, "pad_token_id": None}
HIDDEN, FFN, VOCABULARY, SEQ = 128, 352, 600, 192


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (one(y).unflatten(-1, (4, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        if "nameless" not in OPTIONS:
            self.config = types.SimpleNamespace(model_type="llama", to_dict=lambda: dict(SIZES))
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


torch.manual_seed(1)
model = Llama()
if HOW != "one":
    dist.init_process_group("gloo")
if HOW == "replicated":
    model = nn.parallel.DistributedDataParallel(model)
if HOW == "sharded":
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
if "compiled" in OPTIONS:
    model = torch.compile(model, backend="eager")
if "frozen" in OPTIONS:
    model.embedding.requires_grad_(False)
optimizer = (torch.optim.SGD if "sgd" in OPTIONS else torch.optim.AdamW)(model.parameters(), lr=1e-3)
for _ in range(4):
    for _ in range(2 if "twice" in OPTIONS else 1):
        tokens = torch.randint(0, VOCABULARY, (2, SEQ))
        with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in OPTIONS):
            logits = model(tokens)
        F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
if HOW != "one":
    dist.destroy_process_group()
