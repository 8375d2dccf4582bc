"""What the draft layer proposes for one block: candidates by depth, and how likely they follow.

Depth 0 is the root, the last emitted token, whose successors the block is about. A *slot* is one
candidate token at one depth; several paths may run through it. Edges are kept as CSR, grouped by
the slot they leave, heaviest first.

Dims: D depths, S slots, E edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ROOT = -1  # the slot that an edge out of the root leaves


@dataclass(frozen=True, slots=True)
class Lattice:
    """Candidates and transition probabilities of one block."""

    tokens: tuple[int, ...]  # [S] distinct within a depth
    depth_offsets: tuple[int, ...]  # [D + 1] slots of depth d are [d - 1]:[d], d from 1
    edge_offsets: tuple[int, ...]  # [S + 2] edges of slot s are [s + 1]:[s + 2]; the root's [0]:[1]
    edge_targets: tuple[int, ...]  # [E] slots, one depth further
    edge_weights: tuple[float, ...]  # [E] transition probabilities, a slot's sum to 1 at most
    edge_origins: tuple[int, ...]  # [E] bit sets of the sources that proposed the edge

    @property
    def depth(self) -> int:
        """How many tokens ahead the lattice reaches."""
        return len(self.depth_offsets) - 1

    def edges(self, slot: int) -> range:
        """Indices of the edges that leave a slot, or the root."""
        return range(self.edge_offsets[slot + 1], self.edge_offsets[slot + 2])

    def slots(self, depth: int) -> range:
        """Indices of the slots of one depth, counted from 1."""
        return range(self.depth_offsets[depth - 1], self.depth_offsets[depth])


@dataclass(slots=True)
class LatticeBuilder:
    """Collects proposed chains; chains that agree on a token at a depth share its slot."""

    depth_limit: int
    _edges: dict[tuple[int, int, int], tuple[float, int]] = field(default_factory=dict)

    def add(self, tokens: Sequence[int], weights: Sequence[float], origin: int) -> None:
        """Add a chain from the root on: `weights[i]` is how likely `tokens[i]` follows."""
        previous = ROOT
        for depth, (token, weight) in enumerate(zip(tokens, weights, strict=True), start=1):
            self.add_edge(depth, previous, token, weight, origin)
            previous = token

    def add_edge(self, depth: int, previous: int, token: int, weight: float, origin: int) -> None:
        """Add one edge; the slot it leaves, named by its token, must have been added before.

        Where several proposals have the same edge, its weight is the probability that at least
        one of them is right, were they independent.
        """
        if depth > self.depth_limit:
            return
        edge = (depth, ROOT if depth == 1 else previous, token)
        known, origins = self._edges.get(edge, (0.0, 0))
        self._edges[edge] = (1.0 - (1.0 - known) * (1.0 - weight), origins | origin)

    @property
    def likeliest_first(self) -> float:
        """How likely the likeliest first token is; 0 if there is none."""
        return max((weight for edge, (weight, _) in self._edges.items() if edge[0] == 1), default=0)

    def build(self, width: int | None = None) -> Lattice:
        """Return the lattice of what was added, with the `width` likeliest edges of each slot."""
        tokens: list[int] = []
        depth_offsets = [0]
        slot_of: dict[tuple[int, int], int] = {}
        leaving: dict[int, list[tuple[float, int, int]]] = {ROOT: []}
        # Sorted by depth alone: insertion order within a depth is the sources' order of trust.
        edges = sorted(self._edges.items(), key=lambda edge: edge[0][0])
        for (depth, previous, token), (weight, origins) in edges:
            while len(depth_offsets) <= depth:
                depth_offsets.append(len(tokens))
            slot = slot_of.get((depth, token))
            if slot is None:
                slot = slot_of[depth, token] = len(tokens)
                tokens.append(token)
                leaving[slot] = []
                depth_offsets[depth] = len(tokens)
            source = ROOT if depth == 1 else slot_of[depth - 1, previous]
            leaving[source].append((weight, slot, origins))
        return _compressed(tuple(tokens), tuple(depth_offsets), leaving, width)


def _compressed(
    tokens: tuple[int, ...],
    depth_offsets: tuple[int, ...],
    leaving: dict[int, list[tuple[float, int, int]]],
    width: int | None,
) -> Lattice:
    offsets, targets, weights, origins = [0], [], [], []
    for slot in range(ROOT, len(tokens)):
        out = sorted(leaving[slot], key=lambda edge: -edge[0])
        total = max(1.0, sum(weight for weight, _, _ in out))
        for weight, target, origin in out[:width]:
            targets.append(target)
            weights.append(weight / total)
            origins.append(origin)
        offsets.append(len(targets))
    return Lattice(
        tokens=tokens,
        depth_offsets=depth_offsets,
        edge_offsets=tuple(offsets),
        edge_targets=tuple(targets),
        edge_weights=tuple(weights),
        edge_origins=tuple(origins),
    )
