"""A language model in the layout of torchtitan and of published models: products of their own for Q, K, V, gate and up,
one rotary table, tokens as [batch, seq]. `torch_memory` measures it; cells of scenarios train the layers of `model`."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from .. import model, recomputation
from ..layers import experts, ring
from ..sharding import REDUCE_DTYPES, make_mesh, make_mesh_of_experts, over_two_meshes
from . import gpt_oss_model


def rotary_table(cell, device):
    """exp(i * angle), [seq, rotated_dim / 2], of a rank's tokens. A rank with a part of each sequence has the angles of the first
    positions, because no figure depends on their values."""
    powers = torch.arange(0, cell.rotated_dim, 2, dtype=torch.float32, device=device) / -cell.rotated_dim
    angles = torch.outer(torch.arange(cell.seq, dtype=torch.float32, device=device), 500000.0**powers)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x, table):
    """x: [batch, seq, heads, head_dim]."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table[None, :, None, :]).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, cell, device, dtype):
        super().__init__()
        hidden, heads, kv_heads = cell["model.hidden"], cell["model.heads"], cell.kv_heads
        self.cell = cell
        self.q, self.k, self.v = (
            model.Linear(cell, hidden, count * cell.head_dim, device, dtype, cell.qkv_bias)
            for count in (heads, kv_heads, kv_heads)
        )
        self.q_norm, self.k_norm = model.make_qk_norms(cell, device, dtype)
        self.proj = model.Linear(cell, heads * cell.head_dim, hidden, device, dtype)
        self.ring = None  # shard() sets the group of the ranks that have each sequence between them, on a CPU

    def forward(self, x, table):
        batch, seq, _ = x.shape
        q, k, v = (one(x).view(batch, seq, -1, self.cell.head_dim) for one in (self.q, self.k, self.v))
        if self.cell.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if table is not None:
            q, k = rotated(q, table), rotated(k, table)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        grouped = self.cell["model.heads"] != self.cell.kv_heads
        if self.ring is not None:
            attended = ring.attend(q, k, v, self.ring)
        else:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.proj(attended.transpose(1, 2).reshape(batch, seq, -1))


class LatentAttention(nn.Module):
    """Multi-head latent attention in the arrangement of torchtitan's DeepSeek-V3: one product makes the latent of keys and
    values and the rotated part of the keys. Its variables live until forward returns, as there."""

    def __init__(self, cell, device, dtype):
        super().__init__()
        self.cell = cell
        hidden, heads, where = cell["model.hidden"], cell["model.heads"], (device, dtype)
        q_rank, kv_rank = cell["model.q_rank"], cell["model.kv_rank"]
        self.q_down = model.Linear(cell, hidden, q_rank, *where, bias=False)
        self.q_norm = nn.RMSNorm(q_rank, eps=model.EPSILON, device=device, dtype=dtype)
        self.q_up = model.Linear(cell, q_rank, heads * cell.key_dim, *where, bias=False)
        self.kv_down = model.Linear(cell, hidden, kv_rank + cell.rotated_dim, *where, bias=False)
        self.kv_norm = nn.RMSNorm(kv_rank, eps=model.EPSILON, device=device, dtype=dtype)
        self.kv_up = model.Linear(cell, kv_rank, heads * (cell.head_dim + cell.value_dim), *where, bias=False)
        self.proj = model.Linear(cell, heads * cell.value_dim, hidden, *where)

    def forward(self, x, table):
        cell, (batch, seq, _) = self.cell, x.shape
        latent = self.q_down(x)
        latent = self.q_up(self.q_norm(latent))
        plain_q, turned_q = latent.view(batch, seq, -1, cell.key_dim).split((cell.head_dim, cell.rotated_dim), dim=-1)
        turned_q = rotated(turned_q, table)
        q = torch.cat((plain_q, turned_q), dim=-1)
        latent, turned_k = self.kv_down(x).split((cell["model.kv_rank"], cell.rotated_dim), dim=-1)
        turned_k = rotated(turned_k.unsqueeze(2), table)
        latent = self.kv_up(self.kv_norm(latent))
        plain_k, v = latent.view(batch, seq, -1, cell.head_dim + cell.value_dim).split((cell.head_dim, cell.value_dim), -1)
        k = torch.cat((plain_k, turned_k.expand(-1, -1, plain_k.shape[2], -1)), dim=-1)
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=False)
        attended = attended.transpose(1, 2).reshape(batch, seq, -1)
        return self.proj(attended)


class Mlp(nn.Module):
    def __init__(self, cell, device, dtype, width):
        super().__init__()
        self.cell = cell
        self.gate = model.Linear(cell, cell["model.hidden"], width, device, dtype)
        self.up = None if cell.gpt else model.Linear(cell, cell["model.hidden"], width, device, dtype)
        self.down = model.Linear(cell, width, cell["model.hidden"], device, dtype)

    def forward(self, x):
        y = model.activated(self.cell, self.gate(x))
        return self.down(y if self.up is None else y * self.up(x))


class Mixture(nn.Module):
    """Experts with products of their own for gate and up."""

    def __init__(self, cell, device, dtype):
        super().__init__()
        self.cell, hidden, width = cell, cell["model.hidden"], cell.expert_ffn
        self.router = model.Linear(cell, hidden, cell["model.experts"], device, dtype)
        self.balance = experts.make_balance(cell, device)
        self.gate, self.up = (experts.ExpertWeights(cell, width, hidden, device, dtype) for _ in range(2))
        self.down = experts.ExpertWeights(cell, hidden, width, device, dtype)
        self.shared = Mlp(cell, device, dtype, cell.shared_ffn) if cell.shared_ffn else None
        self.dispatch = None  # shard() sets it if ranks have the experts between them

    def expert_weights(self):
        return [one.weight for one in (self.gate, self.up, self.down)]

    def run_experts(self, rows, ends):
        y = model.activated(self.cell, self.gate(rows, ends))
        return self.down(y * self.up(rows, ends), ends)

    def forward(self, x):
        rows = experts.mix(self.cell, x.flatten(0, 1), self.router, self.run_experts, self.shared, self.balance, self.dispatch)
        return rows.view_as(x)


def attention_of(cell):
    if cell.has_sinks:
        return gpt_oss_model.SinkAttention
    return LatentAttention if cell.has_latents else Attention


def mixture_of(cell):
    return gpt_oss_model.ClampedMixture if cell.swiglu_limit else Mixture


class Layer(nn.Module):
    def __init__(self, cell, device, dtype):
        super().__init__()
        self.attention_norm = model.make_norm(cell, device, dtype)
        self.attention = attention_of(cell)(cell, device, dtype)
        self.mlp_norm = model.make_norm(cell, device, dtype)
        self.mlp = mixture_of(cell)(cell, device, dtype) if cell.routes else Mlp(cell, device, dtype, cell.ffn)

    def forward(self, x, table):
        x = x + self.attention(self.attention_norm(x), table)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    def __init__(self, cell, device):
        super().__init__()
        dtype = torch.float32 if cell["training.master_weights"] == "f32" else model.dtype_of(cell)
        self.cell, self.batch, self.seq = cell, cell["model.batch"], cell.seq
        self.embedding = nn.Embedding(cell.vocabulary, cell["model.hidden"], device=device, dtype=dtype)
        self.positions = None
        if cell.learned_positions:
            self.positions = nn.Embedding(self.seq, cell["model.hidden"], device=device, dtype=dtype)
        self.layers = nn.ModuleList(Layer(cell.of_layer(i), device, dtype) for i in range(cell["model.layers"]))
        self.norm = model.make_norm(cell, device, dtype)
        self.head = nn.Linear(cell["model.hidden"], cell.vocabulary, bias=False, device=device, dtype=dtype)
        if cell["model.head"] == "tied":
            self.head.weight = self.embedding.weight
        has_table = not cell.gpt and not cell.has_sinks
        self.register_buffer("table", rotary_table(cell, device) if has_table else None, persistent=False)
        if cell.has_sinks:
            self.make_documents(device)

    def make_documents(self, device):
        for name, values in zip(("token_positions", "begins"), gpt_oss_model.make_documents(self.cell, device), strict=True):
            self.register_buffer(name, values, persistent=False)

    def for_attention(self):
        """What each layer's attention reads in addition to its input."""
        if self.cell.has_sinks:
            return gpt_oss_model.Documents(self.token_positions, self.begins, self.seq)
        return self.table

    def forward(self, tokens):
        x = model.scaled_embeddings(self.cell, self.embedding(tokens.view(self.batch, self.seq)))
        if self.positions is not None:
            x = x + self.positions.weight
        for number, layer in enumerate(self.layers, 1):
            x = recomputation.call(self.cell, number, layer, x, self.for_attention())
        normed = self.norm(x)
        return normed.flatten(0, 1) if self.cell.loss_chunks > 1 else self.head(normed).flatten(0, 1)

    def logits_of(self, hidden):
        return self.head(hidden)


def has_own_groups(cell):
    """False if the root holds the embedding, the last norm and the head, since modules share a weight, or read one
    without a call of its module."""
    return cell["model.head"] != "tied" and not cell.learned_positions


def make_meshes(cell, device_type):
    """The ranks of FSDP2; if ranks have experts between them, the same ranks as [replicas, shards of experts, experts], else
    None; if ranks have sequences between them, the ranks with this rank's sequences, else None."""
    mesh, sparse, sequence = make_mesh(cell, device_type), make_mesh_of_experts(cell, device_type), None
    if cell.context_parallel > 1:
        replicas, shards = cell.mesh
        sizes = replicas * shards // cell.context_parallel, cell.context_parallel
        sequence = init_device_mesh(device_type, sizes, mesh_dim_names=("others", "sequence"))["sequence"]
    return mesh, sparse, sequence


def shard(cell, built, mesh, sparse=None, sequence=None):
    """Groups as torchtitan makes them: the embedding, each layer, the last norm with the head. If ranks have experts between
    them, a layer's experts are a second group over the ranks that have the same experts."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    computes = model.dtype_of(cell) if cell["training.master_weights"] == "f32" else None
    policy = MixedPrecisionPolicy(param_dtype=computes, reduce_dtype=REDUCE_DTYPES.get(cell.get("reduce_dtype")))
    options = {"mesh": mesh, "mp_policy": policy}
    reshards = bool(cell["reshard_after_forward"])
    placement = placement_of_experts(cell, built, mesh, sparse)
    for layer in built.layers:
        fully_shard(layer, **options, reshard_after_forward=reshards, shard_placement_fn=placement)
    if has_own_groups(cell):
        fully_shard(built.embedding, **options, reshard_after_forward=reshards)
        fully_shard([built.norm, built.head], **options, reshard_after_forward=False)
    fully_shard(built, **{**options, "reshard_after_forward": False})
    if sparse is not None:
        prefetch_next(cell, built)
    if sequence is not None and sequence.device_type == "cpu":
        for layer in built.layers:
            layer.attention.ring = sequence.get_group()


def placement_of_experts(cell, built, mesh, sparse):
    """FSDP2's `shard_placement_fn`; None if all parameters are divided alike."""
    from torch.distributed.tensor import Shard

    # As torchtitan's FSDP of experts: with more shards than experts, each shard has a part of every expert.
    divides_experts = cell.routes and mesh.size(-1) > cell["model.experts"]
    if sparse is None:
        mixtures = [module for module in built.modules() if hasattr(module, "expert_weights")]
        of_experts = {id(one) for mixture in mixtures for one in mixture.expert_weights()}
        return (lambda one: Shard(1) if id(one) in of_experts else None) if divides_experts else None
    return over_two_meshes(built, mesh, sparse, 1 if divides_experts else 0)


def prefetch_next(cell, built):
    """Each module gathers the next one before it computes, in both passes, as in torchtitan: the copies of counts to the host
    would delay gathers that FSDP2 begins by itself."""
    order = list(built.layers)
    if has_own_groups(cell):
        order[0].set_modules_to_backward_prefetch([built.embedding])
        order[-1].set_modules_to_forward_prefetch([built.head])
        built.embedding.set_modules_to_forward_prefetch([order[0]])
        built.head.set_modules_to_backward_prefetch([order[-1]])
    for one, following in itertools.pairwise(order):
        one.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([one])
