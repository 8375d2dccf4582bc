"""The twin of `norm`: root mean square norm of rows."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return rows [R, K] float32 over their root mean square, times `weight` [K]."""
    mean = (rows * rows).mean(dim=1, keepdim=True)
    return rows * torch.rsqrt(mean + epsilon) * weight
