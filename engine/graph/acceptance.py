"""Exact acceptance: draw from the verifier, and keep going as long as the draft foresaw it.

At each node one token is drawn from the verifier's own distribution on that path. If it is a
child of the node it was drafted, and the walk descends; otherwise it is emitted and the walk
stops. What is emitted never depends on the tree: only how many tokens one pass yields does. This
is exact for any set of distinct siblings, whatever proposed them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.graph.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Walk:
    """What one verification emitted."""

    nodes: tuple[int, ...]  # where tokens were drawn, root first; their keys are now committed
    tokens: tuple[int, ...]  # drawn there, parallel to `nodes`
    matched: tuple[int | None, ...]  # the child that each token was, if it had been drafted

    @property
    def accepted(self) -> int:
        """How many of the tokens had been drafted."""
        return sum(node is not None for node in self.matched)

    def first(self, count: int) -> Walk:
        """Return the walk as if it had ended after `count` tokens."""
        return Walk(self.nodes[:count], self.tokens[:count], self.matched[:count])

    def rejected(self, tree: TokenTree) -> bool:
        """Whether the walk left the tree where the tree went on."""
        return self.matched[-1] is None and bool(tree.children[self.nodes[-1]])


def walk(tree: TokenTree, draw: Callable[[int], int], ends: Callable[[int], bool]) -> Walk:
    """Descend from the root. Calls `draw(node)` once per visited node, then `ends(token)`.

    `ends` says that nothing may follow a token: what was drafted beyond it is not looked at.
    """
    node = 0
    nodes: list[int] = []
    tokens: list[int] = []
    matched: list[int | None] = []
    while True:
        token = draw(node)
        child = tree.children[node].get(token)
        nodes.append(node)
        tokens.append(token)
        matched.append(child)
        if ends(token) or child is None:
            return Walk(tuple(nodes), tuple(tokens), tuple(matched))
        node = child


@dataclass(frozen=True, slots=True)
class Clipped:
    """How much of a tree counts as drafted, once it is known where the text ended."""

    nodes: int  # the root not counted
    depth: int


def clip(tree: TokenTree, walked: Walk, *, ended: bool) -> Clipped:
    """Return what was drafted up to the end of the text: nothing beyond it could be right.

    Without this, a draft that rightly foresaw an end of text and went on would count as wrong.
    """
    limit = len(walked.tokens) if ended else tree.depth
    depths = [depth for depth in tree.depths[1:] if depth <= limit]
    return Clipped(nodes=len(depths), depth=max(depths, default=0))
