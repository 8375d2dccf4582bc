"""What survives a rejection: the anchor, and the candidates that lie beyond the wrong token.

A rejected candidate is often a substitution: another name, another number, and then the text goes
on as foreseen. Slots beyond the rejection keep their absolute positions and compete again in the
next lattice, up to the anchor's horizon: half a block beyond the accepted position where the
verifier was surest. Nothing committed is ever withdrawn, and nothing here decides what is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.graph.acceptance import Walk
from engine.graph.lattice import Lattice
from engine.graph.tree import TokenTree


class Policy(StrEnum):
    """What to do with a rejected block's candidates."""

    ANCHOR = "anchor"  # recycle them where the verifier was sure, redraft wider where it was not
    RESTART = "restart"  # throw them away


@dataclass(frozen=True, slots=True)
class Remainder:
    """What a rejected block leaves to the next one."""

    tokens: tuple[int, ...] = ()  # candidates for depths 1, 2, ... of the next block
    widen: bool = False  # the verifier was unsure: spend nodes on width, not on depth


NOTHING = Remainder()


def anchor(entropies: Sequence[float], accepted: Sequence[bool]) -> int | None:
    """Return the index of the lowest-entropy accepted token, the first of equals; null if none.

    Entropies are the raw verifier's, in nats, of the distributions the tokens were drawn from.
    """
    indices = [index for index, taken in enumerate(accepted) if taken]
    return min(indices, key=lambda index: entropies[index], default=None)


def remainder(
    lattice: Lattice,
    tree: TokenTree,
    walked: Walk,
    entropies: Sequence[float],
    *,
    policy: Policy,
    entropy_threshold: float,
    block_size: int,
) -> Remainder:
    """Return what competes again in the block rooted at the emitted token.

    Entropies are parallel to the walk's tokens. Below `entropy_threshold` at the rejection the
    lattice's heaviest path beyond it is recycled, whether or not its slots were verified; at or
    above it the next block is drafted wider and shallower instead.
    """
    if policy is Policy.RESTART or not walked.rejected(tree):
        return NOTHING
    if entropies[-1] >= entropy_threshold:
        return Remainder(widen=True)
    surest = anchor(entropies, [node is not None for node in walked.matched])
    horizon = (0 if surest is None else surest + 1) + block_size // 2
    # Depths of the verified lattice:   ... accepted | emitted | recycled ... | redrafted ...
    #                                                  d         d + 1           horizon + 1
    emitted_depth = len(walked.tokens)
    path = _heaviest_path(lattice, tree.slots[walked.nodes[-1]])
    kept = path[1 : max(1, horizon - emitted_depth + 1)]
    return Remainder(tuple(lattice.tokens[slot] for slot in kept))


def _heaviest_path(lattice: Lattice, slot: int) -> list[int]:
    path = []
    while edges := lattice.edges(slot):
        slot = lattice.edge_targets[edges[0]]
        path.append(slot)
    return path
