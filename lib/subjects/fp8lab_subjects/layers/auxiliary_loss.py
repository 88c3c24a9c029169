"""The auxiliary loss of a router, which spreads tokens over experts (Switch Transformer, Megatron-LM). As in Megatron's
`MoEAuxLossAutoScaler`, its gradient starts in backward of the mixture, and the loss that training reports does not contain
it."""

import torch


class WithLoss(torch.autograd.Function):
    """Returns `weights`. In backward, `loss` gets the gradient `share`, as a term of the training loss would."""

    @staticmethod
    def forward(ctx, weights, loss, share):
        ctx.share = share
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient.new_full((), ctx.share), None


def loss_of(cell, scores, counts):
    """The number of experts times the sum, over experts, of the share of all choices (`counts`, constants for the gradient)
    times the mean probability. `scores` [tokens, experts] are softmax or sigmoids of the logits."""
    if cell["model.router"] == "sigmoid":
        scores = scores / scores.sum(dim=1, keepdim=True)
    tokens, experts = scores.shape
    choices = tokens * cell["model.top_k"]
    return cell.router_aux_loss * experts * torch.dot(counts / choices, scores.mean(dim=0))


def joined(cell, weights, scores, counts):
    """The weights of the chosen experts, with the loss of the router behind them if the cell has one."""
    return WithLoss.apply(weights, loss_of(cell, scores, counts), cell.loss_share)
