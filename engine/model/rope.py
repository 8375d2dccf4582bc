"""Rotary position embedding over the fused query, key and value heads.

A head's first half of dimensions pairs with its second half, so a rotation by angle a is
`x * cos(a) + swap(x) * (-sin(a), sin(a))`. Values ride along unrotated (cos 1, sin 0), queries
take the attention scale with them. Only products and sums are used: those are exact per element,
wherever a vector loop ends.

Dims: R rows, A = heads + 2 kv heads, D head dim, C context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.dfm.header import Architecture


@dataclass(frozen=True, slots=True)
class Rotation:
    """The factors of one step's rows."""

    cos: Tensor  # [R, A, D]
    sin: Tensor  # [R, A, D], the first half negated

    def apply(self, projected: Tensor) -> Tensor:
        """Return the rotated heads of `projected` [R, A * D] as [R, A, D]."""
        rows, heads, dim = self.cos.shape
        halves = projected.view(rows, heads, 2, dim // 2)
        swapped = halves.flip(2).view(rows, heads, dim)
        return (projected.view(rows, heads, dim) * self.cos).add_(swapped.mul_(self.sin))


class RotaryTable:
    """Cosines and sines of every position of the context, [C, D] each."""

    def __init__(
        self, architecture: Architecture, device: torch.device, scaling_factor: float = 1.0
    ) -> None:
        angles = rotary_angles(architecture, scaling_factor)
        self._cos = angles.cos().float().repeat(1, 2).to(device)
        sin = angles.sin().float()
        self._sin = torch.cat([-sin, sin], dim=1).to(device)
        self._heads = architecture.heads
        self._kv_heads = architecture.kv_heads
        self._scale = architecture.head_dim**-0.5

    def at(self, positions: Tensor) -> Rotation:
        """Return the factors for rows at these positions [R]."""
        rows, dim = positions.shape[0], self._cos.shape[1]
        heads, keys_end = self._heads, self._heads + self._kv_heads
        cos = self._cos.new_ones(rows, keys_end + self._kv_heads, dim)
        sin = torch.zeros_like(cos)
        for target, table in ((cos, self._cos), (sin, self._sin)):
            rotation = table.index_select(0, positions)[:, None]
            target[:, :heads] = rotation * self._scale
            target[:, heads:keys_end] = rotation
        return Rotation(cos, sin)


def rotary_angles(architecture: Architecture, scaling_factor: float = 1.0) -> Tensor:
    """Return the angle of every position of the context and pair of dims, [C, D / 2] float64.

    Positions are multiplied by `scaling_factor`, on top of what the model's own profile does.
    Double precision: a float32 angle is off by 1e-4 at the end of a long context.
    """
    rope, dim = architecture.rope, architecture.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.frequency_factors is not None:
        frequencies /= torch.tensor(rope.frequency_factors, dtype=torch.float64)
    positions = torch.arange(architecture.context_length, dtype=torch.float64)
    return torch.outer(positions * scaling_factor / rope.scaling_factor, frequencies)
