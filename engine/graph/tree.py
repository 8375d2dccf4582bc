"""A lattice unrolled into the tree that attention can verify: one prefix per node.

Dims: N nodes, the root among them. Parents come before their children, so a node's path is its
ancestors in index order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from engine.graph.lattice import ROOT, Lattice


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Candidates to verify in one pass. Node 0 is the root, a token already emitted."""

    tokens: tuple[int, ...]  # [N]
    depths: tuple[int, ...]  # [N] 0 for the root
    parents: tuple[int, ...]  # [N] -1 for the root
    slots: tuple[int, ...]  # [N] where the lattice had it; ROOT for the root
    weights: tuple[float, ...]  # [N] of the edge into the node; 1 for the root
    probabilities: tuple[float, ...]  # [N] joint, of the path from the root
    origins: tuple[int, ...]  # [N] bit sets of the sources; 0 for the root
    children: tuple[dict[int, int], ...]  # [N] token -> node; siblings are distinct tokens

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """Depth of the deepest node: how far ahead the tree was drafted."""
        return max(self.depths)

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root to `node`, both included."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def paths(self) -> list[list[int]]:
        """Return every root-to-leaf path."""
        return [self.path(node) for node in range(len(self)) if not self.children[node]]


def bare(root_token: int) -> TokenTree:
    """Return the tree of plain decoding: a root and nothing else."""
    return TokenTree((root_token,), (0,), (-1,), (ROOT,), (1.0,), (1.0,), (0,), ({},))


def unroll(
    lattice: Lattice, root_token: int, node_budget: int, least_probability: float = 0.0
) -> TokenTree:
    """Unroll a lattice best-first by joint probability into at most `node_budget` nodes.

    The root counts as a node. A node is taken only after its parent, so ancestors are closed;
    equal probabilities are taken in the order in which they were found. Paths less likely than
    `least_probability` are left out.
    """
    tokens, depths, parents, slots = [root_token], [0], [-1], [ROOT]
    weights, probabilities, origins = [1.0], [1.0], [0]
    children: list[dict[int, int]] = [{}]
    found = 0
    # (-probability, order found, parent node, edge)
    frontier: list[tuple[float, int, int, int]] = []

    def expand(node: int, slot: int) -> None:
        nonlocal found
        for edge in lattice.edges(slot):
            probability = probabilities[node] * lattice.edge_weights[edge]
            if probability >= least_probability:
                heapq.heappush(frontier, (-probability, found, node, edge))
                found += 1

    expand(0, ROOT)
    while frontier and len(tokens) < node_budget:
        minus_probability, _, parent, edge = heapq.heappop(frontier)
        node, slot = len(tokens), lattice.edge_targets[edge]
        tokens.append(lattice.tokens[slot])
        depths.append(depths[parent] + 1)
        parents.append(parent)
        slots.append(slot)
        weights.append(lattice.edge_weights[edge])
        probabilities.append(-minus_probability)
        origins.append(lattice.edge_origins[edge])
        children.append({})
        children[parent][tokens[node]] = node
        expand(node, slot)
    return TokenTree(
        tuple(tokens),
        tuple(depths),
        tuple(parents),
        tuple(slots),
        tuple(weights),
        tuple(probabilities),
        tuple(origins),
        tuple(children),
    )
