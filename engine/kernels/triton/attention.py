"""Grouped-query attention of token trees over paged keys and values.

What a row sees is arbitrary: the committed tokens of its request and its own ancestors in the
tree, wherever their pages lie. `engine.model.key_layout` lays the keys of a few rows of a request,
a *piece*, out in logical order, in tiles aligned to absolute position:

    place   0                 shared                                    length
            | all rows see it | lane of one path | lane of another path |

and a row sees places 0..shared-1 and begin..end-1. A program attends one piece in one key-value
head: its rows times the query heads of the group are the rows of two matrix products a tile, with
the online softmax between (FlashAttention 2, Dao 2023). A tile that a row sees nothing of changes
no bit of it: its weights are zero and its scale is one. So a row's bits are those of its own keys,
in order, though its piece walks over others' lanes too.

Dims: R rows of the step, H heads, A key-value heads, g = H / A, D head dim, S slots, P pieces.
Grid: P x A.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.attention_reference import AttentionPlan
from engine.kernels.triton.running import dot_type

QUERY_ROWS = 32  # rows of a tile of queries, where a group has no more heads than that


@triton.jit
def tree_attention_kernel(
    queries,
    pool,
    mixed,
    keys,
    pieces,
    spans,
    query_stride,
    values_offset,
    head_stride,
    slot_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DOT: tl.constexpr,
):
    """Write the mixed values of one piece's rows in one key-value head."""
    piece = pieces + tl.program_id(0) * 5
    kv_head = tl.program_id(1)
    first_row, row_count = tl.load(piece), tl.load(piece + 1)
    first_key, length, shared = tl.load(piece + 2), tl.load(piece + 3), tl.load(piece + 4)
    place = tl.arange(0, ROWS)
    row = (first_row + place // GROUP).to(tl.int64)
    live = place < row_count * GROUP
    begin = tl.load(spans + row * 2, mask=live, other=0)
    end = tl.load(spans + row * 2 + 1, mask=live, other=0)
    dim = tl.arange(0, WIDTH)
    head = (kv_head * GROUP + place % GROUP) * DIM
    inside = live[:, None] & (dim < DIM)[None, :]
    query_at = (row * query_stride + head)[:, None] + dim[None, :]
    query = tl.load(queries + query_at, mask=inside, other=0.0).to(DOT)
    own = pool + kv_head.to(tl.int64) * head_stride
    # finite, so that a row which has seen no key yet is rescaled by one, not by NaN
    top = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, length, KEYS):
        index = start + tl.arange(0, KEYS)
        slot = tl.load(keys + first_key + index).to(tl.int64) * slot_stride
        address = own + slot[:, None] + dim[None, :]
        real = (dim < DIM)[None, :]
        key = tl.load(address, mask=real, other=0.0).to(DOT)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        seen = (index < shared)[None, :] | (
            (index[None, :] >= begin[:, None]) & (index[None, :] < end[:, None])
        )
        scores = tl.where(seen, scores, -float("inf"))
        grown = tl.maximum(top, tl.max(scores, axis=1))
        scale = tl.exp(top - grown)
        weights = tl.exp(scores - grown[:, None])
        total = total * scale + tl.sum(weights, axis=1)
        value = tl.load(address + values_offset, mask=real, other=0.0).to(DOT)
        result = result * scale[:, None]
        result = tl.dot(weights.to(DOT), value, result, input_precision="ieee")
        top = grown
    total = tl.where(live, total, 1.0)
    mixed_at = (row * HEADS * DIM + head)[:, None] + dim[None, :]
    tl.store(mixed + mixed_at, result / total[:, None], mask=inside)


def rows_per_piece(group: int) -> int:
    """Return how many rows a piece may have, of `group` query heads each."""
    return _query_rows(group) // group


def attention_options(heads: int, kv_heads: int, dim: int) -> dict[str, Any]:
    """Return what the kernel is compiled with for a model, but for the precision."""
    width = max(16, triton.next_power_of_2(dim))
    rows = _query_rows(heads // kv_heads)
    return {
        "HEADS": heads,
        "GROUP": heads // kv_heads,
        "DIM": dim,
        "ROWS": rows,
        "KEYS": max(16, min(64, 8192 // width)),  # a tile is at most 64 keys of 128
        "WIDTH": width,
        "num_warps": 4 if rows * width <= 8192 else 8,
        "num_stages": 3,
    }


def tree_attention(
    plan: AttentionPlan, pool: Tensor, queries: Tensor, mixed: Tensor, *, heads: int
) -> None:
    """Attend a step's rows in one layer and write `mixed` [R, H * D] float32.

    `pool` [2, A, S, D] holds keys and values, in any precision; `queries` [R, H * D] are rotated
    and scaled.
    """
    _, kv_heads, _, dim = pool.shape
    assert mixed.is_contiguous()
    assert queries.stride(1) == pool.stride(3) == 1
    pieces = len(plan.pieces)
    if pieces:
        tree_attention_kernel[(pieces, kv_heads)](
            *(queries, pool, mixed, plan.keys, plan.pieces, plan.spans),
            *(queries.stride(0), *pool.stride()[:3]),
            DOT=dot_type(pool.dtype),
            **attention_options(heads, kv_heads, dim),
        )


def _query_rows(group: int) -> int:
    return max(QUERY_ROWS, int(triton.next_power_of_2(group)))
