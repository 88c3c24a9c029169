"""Cross-entropy over parts of the tokens, one after the other, so that the logits of one part exist at a time.

Each part runs the head, its loss and its backward inside the model's forward pass, as torchtitan's ChunkedLossWrapper does
(torchtitan/components/loss.py): backward of the rest begins with the gradient of the head's input, which the parts have
added up in FP32. Of a sharded head the parameters stay gathered over all parts, and gradients are reduced with the last.
"""

import torch
import torch.nn.functional as F


class _BeginsAtHidden(torch.autograd.Function):
    """The loss, whose backward is the gradient that the parts have made. It has the share of the loss already."""

    @staticmethod
    def forward(ctx, hidden, gradient, loss):
        ctx.save_for_backward(gradient)
        return loss.detach()

    @staticmethod
    def backward(ctx, _):
        return *ctx.saved_tensors, None, None


def _keep_gathered(head, is_kept):
    head.set_reshard_after_forward(not is_kept)
    head.set_reshard_after_backward(not is_kept)
    head.set_requires_gradient_sync(not is_kept, recurse=False)
    (head.unshard if is_kept else head.reshard)()


def cross_entropy(head, hidden, targets, parts, share=1.0):
    """The mean cross-entropy of `head(hidden)`. `parts` divides the tokens; `share` is what the loss counts in its step."""
    is_sharded = hasattr(head, "set_requires_gradient_sync")
    gradient = torch.zeros_like(hidden, dtype=torch.float32)
    loss = hidden.new_zeros((), dtype=torch.float32)
    rows = len(targets) // parts
    if is_sharded:
        _keep_gathered(head, True)
    for first in range(0, len(targets), rows):
        if is_sharded and first + rows == len(targets):
            head.set_requires_gradient_sync(True, recurse=False)
        part = hidden[first : first + rows].detach().requires_grad_()
        logits = head(part)
        of_part = F.cross_entropy(logits.float(), targets[first : first + rows], reduction="sum") / len(targets)
        loss = loss + of_part.detach()
        of_part.backward(None if share == 1.0 else torch.full_like(of_part, share))
        gradient[first : first + rows] = part.grad.float()
        part.grad = None
    if is_sharded:
        _keep_gathered(head, False)
    return _BeginsAtHidden.apply(hidden, gradient.to(hidden.dtype), loss)
