"""Acceptance by drawing: exact whatever the tree, and counted only up to the end of the text."""

from itertools import product

import pytest
from engine_graphs import lattices
from hypothesis import given
from hypothesis import strategies as st

from engine.graph.acceptance import Clipped, clip, walk
from engine.graph.lattice import Lattice, LatticeBuilder
from engine.graph.tree import TokenTree, bare, unroll


def chain(*tokens: int) -> TokenTree:
    builder = LatticeBuilder(depth_limit=len(tokens))
    builder.add(tokens, [0.9] * len(tokens), 1)
    return unroll(builder.build(), 0, 1 + len(tokens))


def never(_token: int) -> bool:
    return False


def test_the_walk_follows_the_draft_and_emits_one_token_more() -> None:
    walked = walk(chain(4, 5, 6), [4, 5, 6, 7].__getitem__, never)
    assert walked.tokens == (4, 5, 6, 7)
    assert (walked.accepted, walked.nodes) == (3, (0, 1, 2, 3))
    assert not walked.rejected(chain(4, 5, 6))


def test_the_walk_stops_at_the_first_token_that_was_not_drafted() -> None:
    tree = chain(4, 5, 6)
    walked = walk(tree, [4, 9, 6, 7].__getitem__, never)
    assert walked.tokens == (4, 9)
    assert walked.accepted == 1
    assert walked.rejected(tree)


def test_nothing_is_drawn_beyond_an_end_even_where_the_draft_goes_on() -> None:
    tree = chain(4, 5, 6)
    walked = walk(tree, [4, 5].__getitem__, lambda token: token == 5)
    assert walked.tokens == (4, 5)
    assert walked.accepted == 2


def test_drafts_beyond_the_end_of_the_text_are_not_counted() -> None:
    tree = chain(4, 5, 6)
    foreseen = walk(tree, [4, 5].__getitem__, lambda token: token == 5)
    missed = walk(tree, [9].__getitem__, lambda token: token == 9)
    assert clip(tree, foreseen, ended=True) == Clipped(nodes=2, depth=2)
    assert clip(tree, missed, ended=True) == Clipped(nodes=1, depth=1)
    assert clip(tree, missed, ended=False) == Clipped(nodes=3, depth=3)
    assert clip(bare(0), walk(bare(0), lambda _: 3, never), ended=False) == Clipped(0, 0)


@given(lattices(), st.integers(1, 8), st.lists(st.integers(0, 4), min_size=8, max_size=8))
def test_what_is_emitted_is_a_prefix_of_what_the_verifier_would_say_undrafted(
    lattice: Lattice, node_budget: int, verdict: list[int]
) -> None:
    """Given a verifier whose draw at each position is fixed, no tree changes the text."""
    tree = unroll(lattice, 99, node_budget)
    walked = walk(tree, lambda node: verdict[tree.depths[node]], never)
    assert list(walked.tokens) == verdict[: len(walked.tokens)]
    assert walked.accepted == len(walked.tokens) - 1


def law(prefix: tuple[int, ...]) -> list[float]:
    """A toy verifier over three tokens that depends on the whole path."""
    weights = [1 + (sum(prefix) * 7 + len(prefix) * 3 + token * 5) % 11 for token in range(3)]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("proposals", [[], [[0, 1]], [[0, 1], [1, 1]], [[0, 0], [1, 2], [2, 2]]])
def test_the_emitted_text_has_exactly_the_verifiers_law(proposals: list[list[int]]) -> None:
    """Summed over all outcomes of the draws at the tree's nodes, each on its own path."""
    builder = LatticeBuilder(depth_limit=2)
    for proposal in proposals:
        builder.add(proposal, [0.5] * len(proposal), 1)
    tree = unroll(builder.build(), 99, 6)

    found: dict[tuple[int, ...], float] = {}
    for script in product(range(3), repeat=3):
        probability = 1.0

        def draw(node: int, script: tuple[int, ...] = script) -> int:
            nonlocal probability
            path = tuple(tree.tokens[ancestor] for ancestor in tree.path(node)[1:])
            probability *= law(path)[script[len(path)]]
            return script[len(path)]

        text = list(walk(tree, draw, never).tokens)
        while len(text) < 3:  # the rest is decoded plainly
            probability *= law(tuple(text))[script[len(text)]]
            text.append(script[len(text)])
        found[tuple(text)] = found.get(tuple(text), 0.0) + probability

    for text in product(range(3), repeat=3):
        expected = law(())[text[0]] * law(text[:1])[text[1]] * law(text[:2])[text[2]]
        assert found[text] == pytest.approx(expected, rel=1e-12)
