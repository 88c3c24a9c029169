"""Attention to the last `window` tokens, and with sinks: each head has a logit that is added to the sum of the softmax and has no
value. It is composed of products and softmax in FP32, because SDPA has no sinks, and varlen_attn() returns no gradient of the sums.
All scores are saved for backward.
"""

import torch


def is_later(seq, window, device):
    """[seq, seq], true for keys that a query does not read: later ones, and with a window earlier ones."""
    entire = torch.ones(seq, seq, dtype=torch.bool, device=device)
    return entire.triu(1) | entire.tril(-window) if window else entire.triu(1)


def attend(q, k, v, window=0, sinks=None):
    """q [batch, heads, seq, columns]; k and v may have fewer heads. `window` 0: all tokens before a query. `sinks` [heads]."""
    heads, seq, columns = q.shape[1:]
    k, v = (one.float().repeat_interleave(heads // one.shape[1], dim=1) for one in (k, v))
    scores = (q.float() @ k.transpose(-2, -1)) * columns**-0.5
    scores = scores.masked_fill(is_later(seq, window, q.device), -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().view(1, -1, 1, 1).expand(len(q), -1, seq, 1)), dim=-1)
    shares = torch.softmax(scores, dim=-1)[..., :seq]
    return (shares @ v).to(q.dtype)
