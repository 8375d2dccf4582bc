"""Row tiles: the row counts at which a computation gives every row the same bits.

A matrix library picks its kernel, and with it the order of its sums, by the shape it is given. So
the same row can come out differently at 1 row and at 16. Which counts agree depends on library,
instruction set, thread count and matrix, and is therefore probed when a model is loaded, not
assumed. A step's rows are then covered by agreeing tiles, the last one padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CANDIDATES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)
BASE = 4  # the count that the others are compared with
PROBE_ROWS = 16


def agreeing_tiles(
    compute: Callable[[Tensor], Tensor],
    probe: Tensor,
    candidates: Sequence[int] = CANDIDATES,
) -> tuple[int, ...]:
    """Return the candidates at which `compute` treats each row alike, ascending.

    `compute` maps [m, ...] to [m, ...] row by row; `probe` [PROBE_ROWS, ...] is random. Every
    place within a tile is tried. Where even the base's rows depend on their place, only single
    rows are left: they have no neighbours.
    """
    reference = torch.cat([compute(rows) for rows in torch.split(probe, BASE)])

    def agrees(count: int, shift: int) -> bool:
        order = (torch.arange(shift + count) % PROBE_ROWS).to(probe.device)
        # a view that starts inside its buffer, as the tiles of a step do
        result = compute(probe[order][shift:])
        return torch.equal(result, reference[order[shift:]])

    if not all(agrees(BASE, shift) for shift in range(1, BASE)):
        return (1,)
    return tuple(count for count in candidates if count == BASE or agrees(count, 3))


def cover(rows: int, tiles: Sequence[int]) -> tuple[int, ...]:
    """Return tile sizes whose sum is at least `rows`; only the last one is padded.

    `tiles` ascends. A padded tile costs less than two smaller ones.
    """
    whole, rest = divmod(rows, tiles[-1])
    sizes = (tiles[-1],) * whole
    return (*sizes, next(tile for tile in tiles if tile >= rest)) if rest else sizes
