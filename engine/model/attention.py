"""Grouped-query attention of a step's rows over their own keys, in a fixed order per row.

Requests of like size are attended together as one *bucket*. Scores and the softmax see a row's
whole layout (see `key_layout`); the weighted values are summed tile by tile, in order. Nothing in
it depends on what else is in the bucket, given row counts that the matrix library treats alike
(`row_tiles`, probed).

Dims: R rows of the step, H heads, G kv heads, g = H / G, D head dim, S requests of a bucket,
m rows and L keys of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.dfm.header import Architecture
from engine.kernels.tiles import PROBE_ROWS, agreeing_tiles
from engine.model.key_layout import TILE, Piece, pieces
from engine.model.rows import StepRows

_KEYS_PER_BUCKET = 8192  # bounds what is gathered at once
_SEED = 20_240_301


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests attended together. Where one has fewer than m rows, its first one is repeated."""

    rows: Tensor  # [S * m] int64: rows of the step
    keys: Tensor  # [S * L] int64: slots
    mask: Tensor  # [S, m, 1, L] float32: 0 where a row sees a key, else -inf
    requests: int


class Attention:
    """Plans and computes attention for one model."""

    def __init__(self, architecture: Architecture, null_slot: int, device: torch.device) -> None:
        self._kv_heads = architecture.kv_heads
        self._group = architecture.group_size
        self._dim = architecture.head_dim
        self._null_slot = null_slot
        self._device = device
        self.row_tiles = self._probe_tiles()
        self.batch_invariant = self._probe_neighbours()

    def plan(self, step: StepRows) -> tuple[Bucket, ...]:
        """Sort the step's requests into buckets, once for all layers."""
        groups: dict[tuple[int, int], list[Piece]] = {}
        for piece in pieces(step, self.row_tiles[-1], self._null_slot):
            height = next(tile for tile in self.row_tiles if tile >= piece.rows)
            groups.setdefault((height, _size_class(len(piece.layout.keys))), []).append(piece)
        buckets: list[Bucket] = []
        for (height, _), group in groups.items():
            length = max(len(piece.layout.keys) for piece in group)
            at_once = max(1, _KEYS_PER_BUCKET // length)
            buckets += [
                self._bucket(group[first : first + at_once], height)
                for first in range(0, len(group), at_once)
            ]
        return tuple(buckets)

    def attend(self, bucket: Bucket, pool: Tensor, queries: Tensor, mixed: Tensor) -> None:
        """Attend one bucket in one layer and write its rows of `mixed` [R, H * D].

        `pool` [2, G, slots, D] holds keys and values, `queries` [R, H * D] are rotated and scaled.
        """
        groups, width = self._kv_heads, self._group * self._dim
        gathered = pool.flatten(0, 1).index_select(1, bucket.keys)
        keys, values = gathered.view(2, groups * bucket.requests, -1, self._dim).unbind(0)
        chosen = queries.view(-1, groups, width).transpose(0, 1).index_select(1, bucket.rows)
        result = self._mix(
            chosen.view(groups * bucket.requests, -1, self._dim), keys, values, bucket.mask
        )
        # repeated rows write the same bits again
        mixed.view(-1, groups, width).transpose(0, 1).index_copy_(
            1, bucket.rows, result.view(groups, -1, width)
        )

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return softmax(queries @ keys + mask) @ values, [G * S, m * g, D].

        `queries` [G * S, m * g, D], `keys` and `values` [G * S, L, D], `mask` [S, m, 1, L].
        """
        requests, height, _, length = mask.shape
        scores = torch.bmm(queries, keys.transpose(1, 2))
        scores.view(-1, requests, height, self._group, length).add_(mask)
        weights = torch.softmax(scores, dim=-1).view(*queries.shape[:2], -1, TILE).unbind(2)
        tiles = values.view(len(values), -1, TILE, self._dim).unbind(1)
        result = torch.zeros_like(queries)
        for weight, tile in zip(weights, tiles, strict=True):
            result.baddbmm_(weight, tile)
        return result

    def _bucket(self, group: Sequence[Piece], height: int) -> Bucket:
        length = max(len(piece.layout.keys) for piece in group)
        rows = np.empty((len(group), height), dtype=np.int64)
        keys = np.full((len(group), length), self._null_slot, dtype=np.int64)
        begins, ends = np.empty_like(rows), np.empty_like(rows)
        shared = np.empty((len(group), 1, 1), dtype=np.int64)
        for index, piece in enumerate(group):
            layout, count = piece.layout, piece.rows
            rows[index, :count] = np.arange(piece.first_row, piece.first_row + count)
            rows[index, count:] = piece.first_row
            begins[index, :count], ends[index, :count] = layout.begins, layout.ends
            begins[index, count:], ends[index, count:] = layout.begins[0], layout.ends[0]
            keys[index, : len(layout.keys)] = layout.keys
            shared[index] = layout.shared
        place = np.arange(length)
        seen = (place < shared) | ((place >= begins[..., None]) & (place < ends[..., None]))
        mask = np.where(seen, np.float32(0), np.float32(-np.inf))
        return Bucket(
            rows=torch.from_numpy(rows.reshape(-1)).to(self._device),
            keys=torch.from_numpy(keys.reshape(-1)).to(self._device),
            mask=torch.from_numpy(mask[:, :, None]).to(self._device),
            requests=len(group),
        )

    def _probe_tiles(self) -> tuple[int, ...]:
        length = 5 * TILE
        keys, values = self._random(2, self._kv_heads, length, self._dim)

        def compute(rows: Tensor) -> Tensor:
            mask = rows.new_zeros(1, len(rows), 1, length)
            queries = rows.transpose(0, 1).reshape(self._kv_heads, -1, self._dim)
            mixed = self._mix(queries, keys, values, mask)
            return mixed.view(self._kv_heads, len(rows), -1).transpose(0, 1)

        width = self._group * self._dim
        return agreeing_tiles(compute, self._random(PROBE_ROWS, self._kv_heads, width))

    def _probe_neighbours(self) -> bool:
        """Tell whether a request's result is free of how many others, and how long, are with it."""
        length = 2 * TILE
        rows = self._group * self.row_tiles[-1]
        all_queries = self._random(self._kv_heads, 5, rows, self._dim)
        all_keys, all_values = self._random(2, self._kv_heads, 5, 9 * TILE, self._dim)

        def last_of(requests: int, height: int, places: int) -> Tensor:
            """Attend some requests to their first `length` keys; return the last one's result."""
            mask = all_queries.new_full((requests, height, 1, places), -torch.inf)
            mask[..., :length] = 0
            queries = all_queries[:, -requests:, : height * self._group]
            keys, values = (kept[:, -requests:, :places] for kept in (all_keys, all_values))
            queries, keys, values = (
                part.flatten(0, 1).contiguous() for part in (queries, keys, values)
            )
            result = self._mix(queries, keys, values, mask)
            return result.view(self._kv_heads, requests, -1, self._dim)[:, -1]

        return all(
            torch.equal(last_of(requests, height, tiles * TILE), last_of(1, height, length))
            for height in self.row_tiles
            for requests, tiles in ((1, 3), (2, 9), (5, 2))
        )

    def _random(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(_SEED + len(shape))
        return torch.randn(*shape, generator=generator).to(self._device)


def _size_class(length: int) -> int:
    """Return a length class, so that a bucket pads its keys by a quarter at most."""
    tiles = length // TILE
    step = 1 << max(0, tiles.bit_length() - 3)
    return -(-tiles // step) * step
