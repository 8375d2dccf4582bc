"""The twin of `attention`: every row by itself over the keys that it sees, in single precision."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AttentionPlan(NamedTuple):
    """Which keys the rows of a step see. All int32, on the device that attends.

    A piece is (first row, rows, first key, keys, shared keys); places of keys count from its
    first key. Dims: P pieces, R rows, L keys of all pieces.
    """

    keys: Tensor  # [L] slots
    pieces: Tensor  # [P, 5]
    spans: Tensor  # [R, 2]: a row sees its piece's shared keys, and places begin..end-1


def tree_attention(
    plan: AttentionPlan, pool: Tensor, queries: Tensor, mixed: Tensor, *, heads: int
) -> None:
    """Attend a step's rows in one layer and write `mixed` [R, H * D] float32.

    `pool` [2, A, S, D] holds keys and values, in any precision; `queries` [R, H * D] are rotated
    and scaled.
    """
    _, kv_heads, _, dim = pool.shape
    for first_row, rows, first_key, length, shared in plan.pieces.tolist():
        slots = plan.keys[first_key : first_key + length]
        for row in range(first_row, first_row + rows):
            begin, end = plan.spans[row].tolist()
            seen = torch.cat([slots[:shared], slots[begin:end]])
            keys, values = pool[:, :, seen].float()  # [A, keys, D]
            own = queries[row].view(kv_heads, heads // kv_heads, dim)
            weights = torch.softmax(own @ keys.transpose(1, 2), dim=2)
            mixed[row] = (weights @ values).flatten()
