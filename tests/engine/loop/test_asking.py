"""When it stops being asked for drafts, at which load, and how it comes back."""

import pytest

from engine.loop.asking import Asking


def asked(asking: Asking, draws: int, gain: float, steps: int) -> int:
    """Steps that asked, of some that take 10 ms and would have taken `gain` times that."""
    count = 0
    for _ in range(steps):
        if asking.pays(draws):
            asking.take(draws, 10.0 * gain, 10.0)
            count += 1
    return count


@pytest.mark.parametrize("draws", [1, 8, 32])
def test_where_drafts_pay_every_step_asks(draws: int) -> None:
    assert asked(Asking(), draws, 1.02, 1000) == 1000


@pytest.mark.parametrize(("draws", "most"), [(1, 40), (8, 16), (32, 10)])
def test_where_they_cost_a_tenth_a_cold_loop_pays_for_a_few_steps_only(
    draws: int, most: int
) -> None:
    asking = Asking()
    assert 0 < asked(asking, draws, 0.9, 256) <= most
    assert asked(asking, draws, 0.9, 2560) <= 2 * most


def test_a_load_at_which_drafts_began_to_pay_finds_out() -> None:
    asking = Asking()
    asked(asking, 8, 0.8, 2000)
    assert asked(asking, 8, 1.5, 1000) >= 1000 - 256
    assert asked(asking, 8, 0.8, 10) > 1  # what was long good is not given up at the first miss


def test_loads_are_judged_apart() -> None:
    asking = Asking()
    asked(asking, 32, 0.5, 100)
    assert not asking.pays(32)
    assert asking.pays(1)


def test_one_bad_step_of_a_good_load_is_forgiven() -> None:
    asking = Asking()
    asked(asking, 8, 1.3, 50)
    asking.take(8, 5.0, 10.0)
    assert asking.pays(8)
