"""Which keys the rows of a request read, laid out in tiles aligned to absolute position.

The key of position p stands at place p % TILE of its tile, whatever else is in the step: so the
sums over a tile, and the order of the tiles, are a row's own. Full tiles of committed tokens are
shared by all rows of a request. What follows depends on a row's path: rows whose paths extend one
another share a *lane*, the remaining committed keys followed by the longest of their paths; the
lanes of a branching tree follow each other. A row is masked off what is not its own, and masked
keys add exact zeros.

    place   0        full                        full + width            ...
            | shared | rest | path of lane 0 |pad| rest | path of lane 1 |pad|
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.model.rows import StepRows

TILE = 64

Slots = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The keys of n rows. A row sees places 0..shared-1 and begins[i]..ends[i]-1."""

    keys: Slots  # [L] slots, padded with the null slot; L is a multiple of TILE
    shared: int
    begins: Slots  # [n]
    ends: Slots  # [n]


@dataclass(frozen=True, slots=True)
class Piece:
    """A few rows of one request that are attended together."""

    first_row: int  # in the step
    rows: int
    layout: KeyLayout


def pieces(step: StepRows, rows_max: int, null_slot: int) -> list[Piece]:
    """Cut a step into pieces of at most `rows_max` rows, in row order."""
    found = []
    first_row = 0
    for segment in step.segments:
        committed, tails = segment.committed.numpy(), segment.tail.numpy()
        for start in range(0, len(tails), rows_max):
            tail = tails[start : start + rows_max]
            found.append(Piece(first_row, len(tail), lay_out(committed, tail, null_slot)))
            first_row += len(tail)
    return found


def lay_out(committed: Slots, tail: Slots, null_slot: int) -> KeyLayout:
    """Lay out the keys of rows with tails [n, T] behind `committed` [P]."""
    depths = (tail >= 0).sum(axis=1)
    paths, lanes = _lanes(tail, depths)
    shared = len(committed) // TILE * TILE
    rest = committed[shared:]
    longest = max(len(path) for path in paths)
    width = -(-(len(rest) + longest) // TILE) * TILE
    keys = np.full(shared + width * len(paths), null_slot, dtype=np.int64)
    keys[:shared] = committed[:shared]
    for lane, path in enumerate(paths):
        begin = shared + lane * width
        keys[begin : begin + len(rest)] = rest
        keys[begin + len(rest) : begin + len(rest) + len(path)] = path
    begins = shared + lanes * width
    return KeyLayout(keys, shared, begins, begins + len(rest) + depths)


def _lanes(tail: Slots, depths: Slots) -> tuple[list[Slots], Slots]:
    """Return the longest paths, none a prefix of another, and each row's lane."""
    deepest = int(depths.argmax())
    path = tail[deepest, : depths[deepest]]
    if ((tail[:, : len(path)] == path) | (tail[:, : len(path)] < 0)).all():
        return [path], np.zeros(len(tail), dtype=np.int64)
    paths: list[Slots] = []
    lanes = np.zeros(len(tail), dtype=np.int64)
    for row in np.argsort(-depths, kind="stable"):
        own = tail[row, : depths[row]]
        for lane, path in enumerate(paths):
            if np.array_equal(path[: len(own)], own):
                lanes[row] = lane
                break
        else:
            lanes[row] = len(paths)
            paths.append(own)
    return paths, lanes
