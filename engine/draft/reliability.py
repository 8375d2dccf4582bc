"""Are the lattice's probabilities true? Edges by what was claimed of them, and what came of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from engine.graph.lattice import ROOT, Lattice

_BINS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # where each begins


class ReliabilityBin(msgspec.Struct, frozen=True):
    """Edges whose claimed probability lay in one range."""

    least: float
    edges: int
    predicted: float  # mean of what was claimed
    observed: float  # share that was right


class Reliability:
    """Counts edges that left the emitted path: of those alone it is known whether they were right.

    One table for all edges, and one for each set of sources that proposed an edge together.
    """

    def __init__(self) -> None:
        self._counts: dict[int, list[list[float]]] = {}

    def observe(self, lattice: Lattice, emitted: Sequence[int]) -> None:
        """Count what a lattice claimed of each emitted token, as far as the path is in it."""
        slot: int | None = ROOT
        for depth, token in enumerate(emitted, start=1):
            if slot is None or depth > lattice.depth:
                return
            following = None
            for edge in lattice.edges(slot):
                right = lattice.tokens[lattice.edge_targets[edge]] == token
                weight = lattice.edge_weights[edge]
                for origins in (0, lattice.edge_origins[edge]):
                    row = self._row(origins)[bisect_right(_BINS, weight) - 1]
                    row[0], row[1], row[2] = row[0] + 1, row[1] + weight, row[2] + right
                if right:
                    following = lattice.edge_targets[edge]
            slot = following

    def table(self, origins: int = 0) -> tuple[ReliabilityBin, ...]:
        """Return the bins that have edges: of all, or of one set of sources (a bit set)."""
        return tuple(
            ReliabilityBin(least, int(edges), claimed / edges, right / edges)
            for least, (edges, claimed, right) in zip(_BINS, self._row(origins), strict=True)
            if edges
        )

    @property
    def error(self) -> float | None:
        """Mean distance between claimed and observed, weighed by edges; null without any."""
        bins = self.table()
        total = sum(row.edges for row in bins)
        if not total:
            return None
        return sum(row.edges * abs(row.predicted - row.observed) for row in bins) / total

    @property
    def origins(self) -> list[int]:
        """The sets of sources that proposed anything."""
        return sorted(origin for origin in self._counts if origin)

    def _row(self, origins: int) -> list[list[float]]:
        return self._counts.setdefault(origins, [[0, 0.0, 0] for _ in _BINS])
