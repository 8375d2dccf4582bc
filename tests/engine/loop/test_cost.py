"""What a step costs, and how many nodes are worth it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.graph.lattice import LatticeBuilder
from engine.graph.tree import TokenTree, unroll
from engine.loop.cost import StepCost

CURVE = ((1, 3.0), (4, 4.5), (8, 6.5), (16, 11.0), (64, 38.0))


def test_the_curve_is_straight_between_its_points_and_beyond_them() -> None:
    cost = StepCost(CURVE)
    assert [cost.time_ms(rows) for rows in (1, 4, 8, 64)] == pytest.approx([3.0, 4.5, 6.5, 38.0])
    assert cost.time_ms(12) == pytest.approx(8.75)
    assert cost.time_ms(112) == pytest.approx(65.0)


def test_a_machine_that_became_slower_bends_the_curve() -> None:
    """Given contexts that cost 2 ms more and rows that cost half as much again."""
    cost, random = StepCost(CURVE), np.random.default_rng(5)
    fresh = StepCost(CURVE)
    for _ in range(1000):
        rows = int(random.integers(1, 40))
        cost.observe(rows, 2.0 + 1.5 * fresh.time_ms(rows) + 0.3 * random.normal())
    for rows in (1, 8, 32):
        assert cost.time_ms(rows) == pytest.approx(2.0 + 1.5 * fresh.time_ms(rows), rel=0.1)


def test_steps_of_one_size_say_nothing_about_the_slope() -> None:
    cost = StepCost(CURVE)
    for _ in range(5000):
        cost.observe(4, 9.0)
    assert cost.time_ms(4) == pytest.approx(9.0)
    assert cost.time_ms(8) - cost.time_ms(4) == pytest.approx(2.0, rel=0.3)


def test_a_single_request_is_drafted_wide_and_a_full_batch_is_not() -> None:
    cost, unsure = StepCost(CURVE), [0.4] * 7
    assert cost.nodes_worth(1, 1, unsure) == 7
    assert cost.nodes_worth(32, 32, unsure) == 0
    assert cost.nodes_worth(32, 32, [0.95, 0.95, 0.2]) == 2


def test_where_a_row_costs_as_much_as_a_step_nothing_pays() -> None:
    linear = StepCost(((1, 5.0), (64, 320.0)))
    assert linear.nodes_worth(1, 1, [0.99, 0.98]) == 0


def test_the_likeliest_nodes_of_all_requests_are_taken_first() -> None:
    def chain(*odds: float) -> TokenTree:
        builder = LatticeBuilder(len(odds))
        builder.add(range(1, len(odds) + 1), odds, 1)
        return unroll(builder.build(), 0, 8)

    trees = [chain(0.9, 0.9, 0.2), chain(0.1), chain(0.95)]
    cost = StepCost(CURVE)
    assert cost.chosen_nodes(3, 3, trees, 8) == {0: 2, 2: 1}
    assert cost.chosen_nodes(3, 3, trees, 2) == {0: 1, 2: 1}
    assert not cost.chosen_nodes(3, 3, [chain(0.05)], 8)


@given(
    st.integers(1, 40),
    st.lists(st.floats(0.0, 1.0), max_size=8).map(lambda odds: sorted(odds, reverse=True)),
)
def test_no_other_number_of_nodes_is_better_and_no_unlikely_one_is_missed(
    rows: int, probabilities: list[float]
) -> None:
    """Given a step that computes the rows of a prompt, too, if there are more than 8."""
    cost, draws = StepCost(CURVE), min(rows, 8)
    prompts_ms = cost.time_ms(rows) - cost.time_ms(draws)
    rates = [
        (draws + sum(probabilities[:count])) / (cost.time_ms(rows + count) - prompts_ms)
        for count in range(len(probabilities) + 1)
    ]
    worth = cost.nodes_worth(rows, draws, probabilities)
    assert rates[worth] == pytest.approx(max(rates))
    least = cost.least_probability(rows, draws, 8)
    assert worth <= sum(probability >= least - 1e-9 for probability in probabilities)
