"""Unrolling: best-first, closed under ancestors, bounded, and nothing invented."""

from engine_graphs import lattices
from hypothesis import given
from hypothesis import strategies as st

from engine.graph.lattice import ROOT, Lattice, LatticeBuilder
from engine.graph.tree import bare, unroll


def joint_probabilities(lattice: Lattice) -> dict[tuple[int, ...], float]:
    """Every prefix that the lattice contains, with the product of its edges."""
    found: dict[tuple[int, ...], float] = {}
    open_paths = [((), ROOT, 1.0)]
    while open_paths:
        tokens, slot, probability = open_paths.pop()
        for edge in lattice.edges(slot):
            target = lattice.edge_targets[edge]
            longer = (*tokens, lattice.tokens[target])
            found[longer] = probability * lattice.edge_weights[edge]
            open_paths.append((longer, target, found[longer]))
    return found


@given(lattices(), st.integers(1, 12), st.sampled_from([0.0, 0.05, 0.5]))
def test_a_tree_holds_the_likeliest_prefixes_of_its_lattice(
    lattice: Lattice, node_budget: int, least: float
) -> None:
    tree = unroll(lattice, 99, node_budget, least)
    prefixes = {p: q for p, q in joint_probabilities(lattice).items() if q >= least}
    taken = {
        tuple(tree.tokens[node] for node in tree.path(leaf)[1:]): tree.probabilities[leaf]
        for leaf in range(1, len(tree))
    }
    assert len(tree) == min(node_budget, len(prefixes) + 1)
    assert len(taken) == len(tree) - 1  # no prefix twice
    assert all(prefixes[prefix] == probability for prefix, probability in taken.items())
    left_out = [q for prefix, q in prefixes.items() if prefix not in taken]
    assert not left_out or not taken or max(left_out) <= min(taken.values())


@given(lattices(), st.integers(1, 12))
def test_a_tree_is_well_formed(lattice: Lattice, node_budget: int) -> None:
    tree = unroll(lattice, 99, node_budget)
    for node in range(len(tree)):
        assert tree.parents[node] < node
        assert tree.path(node) == [*(tree.path(tree.parents[node]) if node else []), node]
        assert tree.depths[node] == len(tree.path(node)) - 1
        for token, child in tree.children[node].items():
            assert (tree.parents[child], tree.tokens[child]) == (node, token)
    assert sum(len(children) for children in tree.children) == len(tree) - 1
    assert {node for path in tree.paths() for node in path} == set(range(len(tree)))


def test_paths_that_meet_in_a_slot_are_told_apart_in_the_tree() -> None:
    builder = LatticeBuilder(depth_limit=2)
    builder.add([1, 3], [0.6, 0.9], 1)
    builder.add([2, 3], [0.4, 0.8], 2)
    tree = unroll(builder.build(), 0, 8)
    assert [tree.tokens[path[-1]] for path in tree.paths()] == [3, 3]
    assert tree.tokens == (0, 1, 3, 2, 3)
    assert tree.origins == (0, 1, 1, 2, 2)


def test_a_bare_tree_is_one_node_deep_in_nothing() -> None:
    tree = bare(5)
    assert (len(tree), tree.depth, tree.paths()) == (1, 0, [[0]])
    assert tree == unroll(LatticeBuilder(depth_limit=3).build(), 5, 8)
