"""Recomputation of layers in backward, as `training.checkpoint` names it.

`selective` keeps what matrix products and attention return, and recomputes everything else. `selective_alternate` keeps
of the products only the first, the third ... of each layer, as torchtitan's policy by operation does
(torchtitan/distributed/activation_checkpoint.py, `mm_count % 2`). torchtitan counts products without a bias only; here a
product with a bias counts too.
"""

import functools

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}
VARLEN_ATTENTION = "torch_attn._varlen_attn.default"  # is registered when a program imports it


class Policy:
    """Decides for each operation of one forward of a region, and for its recomputation."""

    def __init__(self, alternates):
        self.alternates, self.products = alternates, {False: 0, True: 0}

    def __call__(self, context, operation, *args, **kwargs):
        keeps = operation in ATTENTION or str(operation) == VARLEN_ATTENTION
        if operation in PRODUCTS:
            self.products[context.is_recompute] += 1
            keeps = not self.alternates or self.products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def contexts(alternates):
    return create_selective_checkpoint_contexts(Policy(alternates))


def call(cell, number, layer, *args):
    """layer(*args) of the layer `number`, counted from 1: recomputed in backward if the cell requires it."""
    every, kind = cell.recompute_every, cell["training.checkpoint"]
    if not every or number % every != 0 or not torch.is_grad_enabled():
        return layer(*args)
    if kind == "full":
        return checkpoint(layer, *args, use_reentrant=False)
    chosen = functools.partial(contexts, kind == "selective_alternate")
    return checkpoint(layer, *args, use_reentrant=False, context_fn=chosen)
