"""What the model often says after its last one, two or three tokens: counted once, looked up.

A table per order maps a hash of the context to its likeliest successors. A lookup tries the
longest context first and costs microseconds; two contexts that collide cost a wrong guess. No
tensors.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.draft.proposals import Foreseen

ORDERS = (3, 2, 1)
WIDTH = 3  # successors kept of one context
PROBABILITY_UNIT = 1 / 255
_FLOOR = 0.04  # joint probability below which nothing is looked up
_LOOKUPS = 10  # contexts of one draft
_REMEMBERED = 4096  # contexts

_REST_BITS = 16  # of a key, beyond those that name its bucket
_BUCKETS = np.arange((1 << 32 - _REST_BITS) + 1)

_MULTIPLIER = 0x9E3779B1
_MASK = 0xFFFFFFFF


class Table(NamedTuple):
    """The contexts of one order."""

    keys: NDArray[np.uint32]  # [C] hashes, ascending, distinct
    tokens: NDArray[np.int32]  # [C, WIDTH] likeliest first, -1 where there are fewer
    probabilities: NDArray[np.uint8]  # [C, WIDTH] in units of 1 / 255


def context_hash(tokens: Sequence[int]) -> int:
    """Hash a few tokens to 32 bits."""
    digest = len(tokens)
    for token in tokens:
        digest = (digest ^ token) * _MULTIPLIER & _MASK
        digest ^= digest >> 15
    return digest


class Phrases:
    """The tables of one model. Immutable."""

    def __init__(self, tables: Mapping[int, Table]) -> None:
        self.tables = dict(tables)
        # Where the keys begin with so many bits; a search of all would miss the cache at each turn.
        self._starts = {
            order: array(
                "i", np.searchsorted(table.keys >> _REST_BITS, _BUCKETS).astype(np.int32).tobytes()
            )
            for order, table in tables.items()
        }
        # arrays: elements come as Python's own integers, several times faster
        self._keys = {order: array("I", table.keys.tobytes()) for order, table in tables.items()}
        self._tokens = {
            order: array("i", table.tokens.tobytes()) for order, table in tables.items()
        }
        self._probabilities = {
            order: table.probabilities.tobytes() for order, table in tables.items()
        }
        # what one step looks up behind a candidate, the next one asks for again
        self._remembered = lru_cache(_REMEMBERED)(self._looked_up)

    def successors(self, context: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """Return what follows a context and how often, likeliest first; nothing if unknown."""
        return self._remembered(tuple(context[-ORDERS[0] :]))

    def _looked_up(self, context: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
        for order in ORDERS:
            if len(context) < order or order not in self._keys:
                continue
            keys, wanted = self._keys[order], context_hash(context[-order:])
            starts, bucket = self._starts[order], wanted >> _REST_BITS
            end = starts[bucket + 1]
            at = bisect_left(keys, wanted, starts[bucket], end)
            if at < end and keys[at] == wanted:
                places = range(at * WIDTH, (at + 1) * WIDTH)
                tokens, probabilities = self._tokens[order], self._probabilities[order]
                return tuple(
                    (tokens[place], probabilities[place] * PROBABILITY_UNIT)
                    for place in places
                    if tokens[place] >= 0
                )
        return ()

    def foresee(
        self,
        recent: Sequence[int],
        depth_limit: int,
        others: Sequence[Foreseen] = (),
        floor: float = 0.0,
    ) -> list[Foreseen]:
        """Return the likeliest ways on from `recent`, as edges; parents before their children.

        Paths whose joint probability is below `floor` are not looked for.
        `others` are edges that another source foresees: the first tokens among them are gone on
        from, too.
        """
        floor = max(floor, _FLOOR)
        found: dict[tuple[int, int, int], Foreseen] = {}
        # (-joint probability, order found, path)
        frontier: list[tuple[float, int, tuple[int, ...]]] = [(-1.0, -1, ())]
        own = {token for token, _ in self.successors(recent)} if others else set()
        for at, other in enumerate(others):
            if other.depth == 1 and depth_limit > 1 and other.token not in own:
                frontier.append((-other.probability, -2 - at, (other.token,)))
        heapq.heapify(frontier)
        start = recent[-ORDERS[0] :]
        for _ in range(_LOOKUPS):
            if not frontier:
                break
            minus_joint, _, path = heapq.heappop(frontier)
            depth = len(path) + 1
            for token, probability in self.successors((*start, *path)):
                if -minus_joint * probability < floor:
                    continue
                edge = (depth, path[-1] if path else -1, token)
                if edge not in found:
                    found[edge] = Foreseen(*edge, probability)
                    if depth < depth_limit:
                        entry = (minus_joint * probability, len(found), (*path, token))
                        heapq.heappush(frontier, entry)
        return sorted(found.values(), key=lambda edge: edge.depth)
