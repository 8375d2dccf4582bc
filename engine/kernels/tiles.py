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

ANY_COUNT = tuple(range(1, 257))  # of kernels that treat a row alike whatever the count
CANDIDATES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)
PROBE_ROWS = 16
_BASES = (4, 6, 8, 12)  # the counts that the others may be compared with, best first


def agreeing_tiles(
    compute: Callable[[Tensor], Tensor],
    probe: Tensor,
    candidates: Sequence[int] = CANDIDATES,
) -> tuple[int, ...]:
    """Return the candidates at which `compute` treats each row alike, ascending.

    `compute` maps [m, ...] to [m, ...] row by row; `probe` [PROBE_ROWS, ...] is random. Every
    place within a tile is tried. Where at every base a row depends on its place, only single rows
    are left: they have no neighbours.
    """

    def tiled(count: int, shift: int) -> tuple[Tensor, Tensor]:
        """Return the computed rows and which probe rows they are."""
        # every probe row at least once: one order of sums often rounds like another
        turns = -(-PROBE_ROWS // count)
        order = (torch.arange(shift + count * turns) % PROBE_ROWS).to(probe.device)
        # views that start inside their buffer, as the tiles of a step do
        tiles = torch.split(probe[order][shift:], count)
        return torch.cat([compute(tile) for tile in tiles]), order[shift:]

    for base in _BASES:
        reference = tiled(base, 0)[0][:PROBE_ROWS]

        def agrees(count: int, shift: int, reference: Tensor = reference) -> bool:
            result, order = tiled(count, shift)
            return torch.equal(result, reference[order])

        if all(agrees(base, shift) for shift in range(1, base)):
            return tuple(count for count in candidates if count == base or agrees(count, 3))
    return (1,)


def cover(rows: int, tiles: Sequence[int]) -> tuple[int, ...]:
    """Return tile sizes whose sum is at least `rows`; only the last one is padded.

    `tiles` ascends. A padded tile costs less than two smaller ones.
    """
    whole, rest = divmod(rows, tiles[-1])
    sizes = (tiles[-1],) * whole
    return (*sizes, next(tile for tile in tiles if tile >= rest)) if rest else sizes
