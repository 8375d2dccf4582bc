"""The lattice's CSR form."""

import pytest
from engine_graphs import lattices
from hypothesis import given

from engine.graph.lattice import ROOT, Lattice, LatticeBuilder


def test_chains_that_agree_share_slots_and_strengthen_edges() -> None:
    builder = LatticeBuilder(depth_limit=3)
    builder.add([7, 8, 9], [0.5, 0.4, 0.3], 1)
    builder.add([7, 5, 9], [0.5, 0.2, 0.1], 2)
    lattice = builder.build()
    assert lattice.tokens == (7, 8, 5, 9)
    assert lattice.depth_offsets == (0, 1, 3, 4)
    assert [lattice.edge_targets[edge] for edge in lattice.edges(ROOT)] == [0]
    assert lattice.edge_weights[0] == pytest.approx(0.75)
    assert lattice.edge_origins[0] == 3
    assert [lattice.edge_targets[edge] for edge in lattice.edges(0)] == [1, 2]
    assert [lattice.edge_targets[edge] for edge in lattice.edges(2)] == [3]
    assert list(lattice.edges(3)) == []


def test_weights_that_promise_too_much_are_scaled_to_a_distribution() -> None:
    builder = LatticeBuilder(depth_limit=1)
    for token, weight in ((1, 0.9), (2, 0.6), (3, 0.5)):
        builder.add([token], [weight], 1)
    assert builder.build().edge_weights == pytest.approx((0.45, 0.3, 0.25))


def test_a_width_keeps_the_likeliest_edges_as_likely_as_they_were() -> None:
    builder = LatticeBuilder(depth_limit=2)
    for tokens, weights in (([1, 4], [0.9, 0.2]), ([2], [0.6]), ([1, 5], [0.0, 0.3])):
        builder.add(tokens, weights, 1)
    wide, narrow = builder.build(), builder.build(1)
    assert narrow.tokens == wide.tokens
    assert [narrow.tokens[narrow.edge_targets[edge]] for edge in narrow.edges(ROOT)] == [1]
    assert [narrow.tokens[narrow.edge_targets[edge]] for edge in narrow.edges(0)] == [5]
    assert narrow.edge_weights[0] == wide.edge_weights[0] == pytest.approx(0.6)


def test_chains_are_cut_at_the_depth_limit() -> None:
    builder = LatticeBuilder(depth_limit=2)
    builder.add([1, 2, 3, 4], [0.5] * 4, 1)
    assert builder.build().tokens == (1, 2)


def test_nothing_proposed_is_an_empty_lattice() -> None:
    lattice = LatticeBuilder(depth_limit=4).build()
    assert lattice.depth == 0
    assert list(lattice.edges(ROOT)) == []


@given(lattices())
def test_any_lattice_is_well_formed(lattice: Lattice) -> None:
    assert lattice.depth_offsets[-1] == len(lattice.tokens)
    assert lattice.edge_offsets[0] == 0
    assert lattice.edge_offsets[-1] == len(lattice.edge_targets)
    depth_of = {slot: d for d in range(1, lattice.depth + 1) for slot in lattice.slots(d)}
    reached = set()
    for depth in range(1, lattice.depth + 1):
        tokens = [lattice.tokens[slot] for slot in lattice.slots(depth)]
        assert len(set(tokens)) == len(tokens) > 0
    for slot in range(ROOT, len(lattice.tokens)):
        weights = [lattice.edge_weights[edge] for edge in lattice.edges(slot)]
        assert sum(weights) <= 1.0 + 1e-9
        assert weights == sorted(weights, reverse=True)
        for edge in lattice.edges(slot):
            target = lattice.edge_targets[edge]
            assert depth_of[target] == depth_of.get(slot, 0) + 1
            reached.add(target)
    assert reached == set(range(len(lattice.tokens)))
