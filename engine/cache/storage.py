"""Keys and values of every slot of every layer.

A slot holds one token's rotated key and its value. Which request owns a slot, and which position
it stands for, is the pages' business. One more slot than asked for, the *null slot*, stays zero:
padding reads it, so that a masked key is always finite.

Dims: L layers, G key-value heads, S slots, D head dim, N slots named in a call.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class KvStorage:
    """A preallocated pool, [L, 2, G, S + 1, D]. Not thread-safe."""

    def __init__(
        self,
        layers: int,
        slots: int,
        kv_heads: int,
        head_dim: int,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.layers = layers
        self.slots = slots
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        shape = (layers, 2, kv_heads, slots + 1, head_dim)
        if device == "cpu" and dtype == torch.float32:
            # calloc: a page costs memory only once it is written, unlike torch.zeros
            self._pool = torch.from_numpy(np.zeros(shape, dtype=np.float32))
        else:
            self._pool = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def null_slot(self) -> int:
        """The index of the slot that is always zero."""
        return self.slots

    def layer(self, layer: int) -> Tensor:
        """Return the live view [2, G, S + 1, D] of one layer: keys first, then values."""
        return self._pool[layer]

    def write(self, layer: int, slots: Tensor, pairs: Tensor) -> None:
        """Store `pairs` [N, 2, G, D], keys before values, at `slots` [N] of one layer.

        They are rounded to the pool's precision.
        """
        self._pool[layer].index_copy_(2, slots, pairs.permute(1, 2, 0, 3).to(self._pool.dtype))

    def read(self, layer: int, slots: Tensor) -> Tensor:
        """Return a copy of the pairs [N, 2, G, D] at `slots` [N] of one layer."""
        return self._pool[layer].index_select(2, slots).permute(2, 0, 1, 3)

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots `src_slots` [N] to `dst_slots` [N] in every layer; the two may overlap.

        Everything is read before anything is written, so a chain such as 5->4, 6->5 is safe.
        `dst_slots` must not repeat.
        """
        if src_slots.numel():
            src, dst = src_slots.to(self._pool.device), dst_slots.to(self._pool.device)
            self._pool.index_copy_(3, dst, self._pool.index_select(3, src))
