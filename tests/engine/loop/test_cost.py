"""The learned cost of a step."""

import numpy as np
import pytest

from engine.loop.cost import StepCost


def test_a_line_is_learned_through_noise() -> None:
    """Given a machine where a step costs 10 + 2 per row, unlike the prior."""
    cost, random = StepCost(), np.random.default_rng(5)
    for _ in range(1000):
        rows = int(random.integers(1, 40))
        cost.observe(rows, 10.0 + 2.0 * rows + random.normal())
    assert cost.least_probability(8, 1.0) == pytest.approx(2 / 26, rel=0.1)


def test_steps_of_one_size_say_nothing_about_the_slope() -> None:
    cost = StepCost()
    for _ in range(5000):
        cost.observe(4, 40.0)
    assert cost.least_probability(4, 1.0) == pytest.approx(1 / 40, rel=0.05)


def test_the_more_tokens_a_step_yields_anyway_the_likelier_a_node_must_be() -> None:
    cost = StepCost()
    assert cost.least_probability(1, 1.0) < cost.least_probability(8, 8.0)
    assert cost.least_probability(4, 1.0) == pytest.approx(1 / 40)
