"""The twin of `statistics`: what the raw verifier thought at each node, in double precision.

Dims: Q rows, V vocabulary, C children of a row at most, B best tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class NodeStatistics(NamedTuple):
    """Of each row of logits. Where a logit was not finite, the entropy is not either."""

    top_ids: Tensor  # [Q, B] int64, best first, the lowest id of equals
    top_logits: Tensor  # [Q, B] float32
    log_sum_exp: Tensor  # [Q] float64
    entropy: Tensor  # [Q] float64, nats
    child_logprobs: Tensor  # [Q, C] float64; NaN where there is no child


def node_statistics(logits: Tensor, children: Tensor, best: int = 1) -> NodeStatistics:
    """Summarise each row of raw logits [Q, V] float32; `children` [Q, C] int64, -1 for none."""
    values = logits.double()
    # a stable sort keeps the lowest id of equals first
    top_logits, top_ids = torch.sort(logits, dim=1, descending=True, stable=True)
    log_sum_exp = torch.logsumexp(values, dim=1)
    shifted = values - values.amax(dim=1, keepdim=True)
    weights = shifted.exp()
    total = weights.sum(dim=1)
    entropy = total.log() - (weights * shifted).sum(dim=1) / total
    found = children >= 0
    chosen = values.gather(1, children.clamp(min=0)) - log_sum_exp[:, None]
    logprobs = torch.where(found, chosen.clamp(max=0.0), torch.nan)
    return NodeStatistics(top_ids[:, :best], top_logits[:, :best], log_sum_exp, entropy, logprobs)
