"""The cost floor's fit: it finds what it was made from, says how sure it is, and declines."""

from __future__ import annotations

import math
import random

import pytest

from billing.economics import model
from metering.queries import StepRun

BLOCK_MS, ALPHA = 12.0, 0.18


def run(concurrency: int, step_ms: float, steps: int = 50) -> StepRun:
    step_ns = round(step_ms * 1e6)
    return StepRun("engine-1", concurrency, steps, steps * concurrency, step_ns, steps * step_ns)


def exact(concurrency: int) -> float:
    return BLOCK_MS * (1 + ALPHA * math.log2(concurrency))


def noisy(seed: int) -> list[StepRun]:
    """Forty runs at five concurrencies, each off by a few per cent."""
    chance = random.Random(seed)
    return [
        run(concurrency, exact(concurrency) * chance.gauss(1, 0.05))
        for concurrency in (1, 2, 4, 8, 16)
        for _ in range(8)
    ]


def test_a_fit_finds_the_terms_that_the_times_were_made_from() -> None:
    found = model.fit([run(each, exact(each)) for each in (1, 2, 4, 8) for _ in range(2)])
    assert found is not None
    assert found.block_ms.value == pytest.approx(BLOCK_MS, abs=1e-5)
    assert found.alpha.value == pytest.approx(ALPHA, abs=1e-6)
    assert found.alpha.low == pytest.approx(found.alpha.high, abs=1e-6)
    assert found.r_squared == pytest.approx(1)
    assert found.step_ms(4) == pytest.approx(exact(4), abs=1e-5)
    assert (found.covers(8), found.covers(9)) == (True, False)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    fits = [model.fit(noisy(seed)) for seed in range(40)]
    held = sum(fit.alpha.low <= ALPHA <= fit.alpha.high for fit in fits if fit)
    assert 34 <= held <= 40
    widths = [fit.alpha.high - fit.alpha.low for fit in fits if fit]
    assert 0.02 < sum(widths) / 40 < 0.15


def test_the_same_runs_give_the_same_interval() -> None:
    assert model.fit(noisy(7)) == model.fit(noisy(7))


@pytest.mark.parametrize(
    ("runs", "missing"),
    [
        ([], "on record are 0 at 0"),
        ([run(1, 10)] * 20, "on record are 20 at 1"),
        ([run(1, 10), run(2, 11)] * 3, "on record are 6 at 2"),
        ([run(1, 1), run(8, 400), run(16, 900)] * 4, "fall to nothing"),
    ],
)
def test_without_enough_data_there_is_no_fit_and_the_reason_is_said(
    runs: list[StepRun], missing: str
) -> None:
    assert model.fit(runs) is None
    assert missing in str(model.why_not(runs))


def test_levels_state_what_was_measured() -> None:
    found = model.levels([run(2, 10), run(2, 30), run(2, 12, steps=10), run(1, 8)])
    assert [(each.concurrency, each.runs, each.steps) for each in found] == [
        (1, 1, 50),
        (2, 3, 110),
    ]
    assert (found[1].step_ms, found[1].tokens_per_step) == (12.0, 2.0)
