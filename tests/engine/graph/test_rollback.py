"""What a rejected block leaves behind."""

import pytest

from engine.graph.acceptance import walk
from engine.graph.lattice import Lattice, LatticeBuilder
from engine.graph.rollback import NOTHING, Policy, Remainder, anchor, remainder
from engine.graph.tree import unroll

CHAIN = (11, 12, 13, 14, 15, 16, 17, 18)


def lattice() -> Lattice:
    builder = LatticeBuilder(depth_limit=8)
    builder.add(CHAIN, [0.9] * 8, 1)
    return builder.build()


def left_over(
    verdict: list[int],
    entropies: list[float],
    policy: Policy = Policy.ANCHOR,
    nodes: int = 9,
) -> Remainder:
    graph = lattice()
    tree = unroll(graph, 10, nodes)
    walked = walk(tree, verdict.__getitem__, lambda _: False)
    return remainder(
        graph,
        tree,
        walked,
        entropies,
        policy=policy,
        entropy_threshold=1.2,
        block_size=8,
    )


def test_the_anchor_is_the_surest_accepted_token() -> None:
    assert anchor([0.5, 0.1, 0.1, 0.0], [True, True, True, False]) == 1
    assert anchor([0.5], [False]) is None


def test_a_sure_rejection_recycles_what_lies_beyond_the_emitted_token() -> None:
    """Accepted 11 and 12, emitted 99 where 13 was drafted: 14 and on keep their positions."""
    assert left_over([11, 12, 99], [0.9, 0.1, 0.3]) == Remainder(tokens=(14, 15, 16))


def test_the_horizon_is_half_a_block_beyond_the_anchor() -> None:
    assert left_over([11, 12, 99], [0.1, 0.9, 0.3]) == Remainder(tokens=(14, 15))
    assert left_over([99], [0.3]) == Remainder(tokens=(12, 13, 14))
    sure_only_long_ago = [11, 12, 13, 14, 15, 16, 99], [0.1, *[0.9] * 5, 0.3]
    assert left_over(*sure_only_long_ago) == Remainder()


def test_slots_that_were_never_verified_compete_again_too() -> None:
    assert left_over([11, 99], [0.1, 0.3], nodes=3) == Remainder(tokens=(13, 14, 15))


def test_an_unsure_rejection_asks_for_width() -> None:
    assert left_over([11, 99], [0.1, 1.2]) == Remainder(widen=True)


@pytest.mark.parametrize("entropy", [0.1, 3.0])
def test_restart_keeps_nothing(entropy: float) -> None:
    assert left_over([11, 99], [0.1, entropy], Policy.RESTART) == NOTHING


def test_a_block_accepted_to_its_last_node_leaves_nothing() -> None:
    assert left_over([*CHAIN, 99], [0.1] * 9) == NOTHING
