"""Attention over sequences that ranks have between them, as PyTorch computes it under `context_parallel()`
(torch.distributed.tensor.experimental): keys and values of all these ranks are gathered, and each rank merges the attention of
its queries to one rank's keys after the other. A rank has two of 2N chunks of each sequence, number `rank` from the start and
from the end, so that under the causal mask all ranks compute equally much.

`context_parallel()` puts CUDA's kernels into this ring. Here the ring is called with the kernel of a CPU too.
"""

import contextlib

import torch
from torch._subclasses.fake_tensor import FakeTensor

try:
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring
except ImportError:  # up to 2.9
    from torch.distributed.tensor.experimental import _attention as ring

aten = torch.ops.aten
SEQ_DIM = 2  # tensors are [batch, heads, seq, columns]


class Ring(torch.autograd.Function):
    """Calls PyTorch's ring attention with the kernel of a CPU, or, for tensors without values, with CUDA's flash attention."""

    @staticmethod
    def forward(ctx, q, k, v, group, on_shapes):
        kernel = aten._scaled_dot_product_flash_attention if on_shapes else aten._scaled_dot_product_flash_attention_for_cpu
        out, sums, *rest = ring._templated_ring_attention(group, SEQ_DIM, kernel, q, k, v, is_causal=True, dropout_p=0.0)
        ctx.save_for_backward(q, k, v, out, sums, *(one for one in rest if isinstance(one, torch.Tensor) and one.numel()))
        ctx.group = group
        ctx.rest = [one for one in rest if not isinstance(one, torch.Tensor)] if on_shapes else None
        return out

    @staticmethod
    def backward(ctx, of_out):
        q, k, v, out, sums, *states = ctx.saved_tensors
        if ctx.rest is None:
            kernel, rest = aten._scaled_dot_product_flash_attention_for_cpu_backward, {}
        else:
            kernel = aten._scaled_dot_product_flash_attention_backward
            most_q, most_k = (one for one in ctx.rest if one is not None)
            seed, offset = states
            rest = {
                "cum_seq_q": None, "cum_seq_k": None, "max_q": most_q, "max_k": most_k, "philox_seed": seed,
                "philox_offset": offset,
            }  # fmt: skip
        of_q, of_k, of_v, *_ = ring._templated_ring_attention_backward(
            ctx.group, SEQ_DIM, kernel, grad_out=of_out, grad_out_name="grad_out", query=q,
            key=k, value=v, out=out, logsumexp=sums, is_causal=True, dropout_p=0.0, **rest,
        )  # fmt: skip
        return of_q, of_k, of_v, None, None


def attend(q, k, v, group):
    """Causal attention of [batch, heads, seq, columns] of this rank's tokens to the tokens of all ranks of the group."""
    return Ring.apply(q, k, v, group, isinstance(q, FakeTensor))


@contextlib.contextmanager
def on_gpus(cell, sequence=None):
    """F.scaled_dot_product_attention over the ranks that have sequences between them, if there are such ranks and they are
    GPUs."""
    if sequence is None or sequence.device_type != "cuda":
        yield
        return
    from torch.distributed.tensor.experimental import context_parallel

    numbers = torch.zeros(cell["model.seq"], device="cuda")  # the context divides a tensor among the ranks
    with context_parallel(sequence, buffers=[numbers], buffer_seq_dims=[0], no_restore_buffers={numbers}):
        yield
