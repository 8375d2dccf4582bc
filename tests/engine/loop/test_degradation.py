"""When drafting turns itself off, and how it comes back."""

import pytest

from engine.loop.degradation import Degradation, Drafting, Window

GOOD = Window(1, depth=4, accepted=4, plain_ms=15.0, spent_ms=5.0)
USEFUL = Window(1, depth=4, accepted=2, plain_ms=9.0, spent_ms=6.0)  # half is wrong, yet it pays
USELESS = Window(1, depth=4, accepted=0, plain_ms=3.0, spent_ms=6.0)
PLAIN = Window(plain_ms=3.0, spent_ms=3.0)


def after(policy: str, step: Window, steps: int = 256) -> Degradation:
    degradation = Degradation(policy)
    for _ in range(steps):
        degradation.take(step)
    return degradation


@pytest.mark.parametrize(
    ("policy", "step", "state", "alert"),
    [
        ("speedup", GOOD, "on", False),
        ("speedup", USEFUL, "on", True),
        ("speedup", USELESS, "off", True),
        ("hit_rate", GOOD, "on", False),
        ("hit_rate", USEFUL, "off", True),
        ("never", USELESS, "on", True),
    ],
)
def test_a_window_is_judged_by_the_policy(
    policy: str, step: Window, state: str, alert: bool
) -> None:
    degradation = after(policy, step)
    assert (degradation.state, degradation.alert) == (state, alert)
    assert degradation.drafting == (state != "off")


def test_nothing_is_judged_before_the_window_is_full() -> None:
    degradation = after("speedup", USELESS, steps=255)
    assert degradation.judged is None
    assert degradation.state is Drafting.ON
    assert not degradation.alert


def test_steps_without_drafts_belong_to_the_window_but_do_not_fill_it() -> None:
    degradation = after("hit_rate", PLAIN, steps=10_000)
    assert degradation.judged is None


@pytest.mark.parametrize(("step", "state"), [(GOOD, "on"), (USELESS, "off")])
def test_what_is_off_is_probed_again_and_judged_anew(step: Window, state: str) -> None:
    degradation = after("speedup", USELESS)
    for _ in range(2048):
        assert degradation.state is Drafting.OFF
        degradation.take(PLAIN)
    assert degradation.state is Drafting.PROBING
    for _ in range(64):
        assert degradation.drafting
        degradation.take(step)
    assert degradation.state == state
