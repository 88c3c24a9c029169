"""Attention over ranks that have each sequence between them (layers/ring.py) has the output and the gradients of its
definition in double: softmax of the scores of all tokens before a query."""

import sys

import torch
from fp8lab_subjects import ranks
from fp8lab_subjects.layers import ring

BATCH, HEADS, KV_HEADS, COLUMNS = 2, 4, 2, 8
# Sums in FP32 of at most 64 terms below 8; merged once for each rank.
BOUND = 64 * 8 * 2.0**-23


def tensors(seq):
    """Q, K, V and the gradient of the output, [batch, heads, seq, columns], the same on every rank."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(BATCH, heads, seq, COLUMNS, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]


def defined(q, k, v, of_out):
    q, k, v = (one.double().requires_grad_() for one in (q, k, v))
    repeated_k, repeated_v = (one.repeat_interleave(HEADS // KV_HEADS, dim=1) for one in (k, v))
    scores = q @ repeated_k.transpose(-2, -1) / COLUMNS**0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    out = torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1) @ repeated_v
    out.backward(of_out.double())
    return [out.detach(), q.grad, k.grad, v.grad]


def own(of_all, rank, count):
    """The two chunks of a rank."""
    chunks = of_all.chunk(2 * count, dim=ring.SEQ_DIM)
    return torch.cat((chunks[rank], chunks[2 * count - 1 - rank]), dim=ring.SEQ_DIM)


def furthest(rank, folder, count, seq):
    """How far a rank's output and gradients are from the definition."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/r", rank=rank, world_size=count)
    *operands, of_out = tensors(seq)
    # Heads inside tokens in memory, as a layer has them.
    mine = [own(one, rank, count).transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for one in operands]
    out = ring.attend(*mine, torch.distributed.group.WORLD)
    out.backward(own(of_out, rank, count))
    found = [out.detach(), *(one.grad for one in mine)]
    wanted = [own(one, rank, count) for one in defined(*operands, of_out)]
    return [float((one - other).abs().max()) for one, other in zip(found, wanted, strict=True)]


def check_ring(count, seq):
    for distances in ranks.run(lambda rank, folder: furthest(rank, folder, count, seq), count):
        assert all(distance <= BOUND for distance in distances), (count, distances)


if __name__ == "__main__":
    for ranks_of_sequence in (2, 3, 4):
        check_ring(ranks_of_sequence, 24 * ranks_of_sequence)
    sys.exit(0)
