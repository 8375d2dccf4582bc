"""Totals and rates."""

import pytest

from engine.loop.tally import Tally, added, counted
from engine.records import BlockRecord, DraftCounters, StepRecord


def block(tokens: int, accepted: int = 0) -> BlockRecord:
    return BlockRecord(
        request_id="r",
        block_index=0,
        token_ids=(1,) * tokens,
        pieces=(b"",) * tokens,
        logprobs=(0.0,) * tokens,
        entropies=(0.0,) * tokens,
        drafted_depth=accepted,
        accepted_tokens=accepted,
    )


def step(start_s: float, end_s: float, *blocks: BlockRecord) -> StepRecord:
    return StepRecord("e", 0, int(start_s * 1e9), int(end_s * 1e9), blocks=blocks)


def test_totals_add_up() -> None:
    one, other = counted([block(3, 2), block(1)]), counted([block(2, 1)])
    assert added(one, other) == counted([block(3, 2), block(1), block(2, 1)])
    assert counted([]) == DraftCounters()


def test_the_rate_is_of_the_last_ten_seconds() -> None:
    tally = Tally()
    assert tally.tokens_per_s is None
    tally.take(step(0, 1, block(100)))
    assert tally.tokens_per_s == pytest.approx(100)
    for second in range(20, 25):
        tally.take(step(second, second + 1, block(2)))
    assert tally.tokens_per_s == pytest.approx(2)


def test_a_step_longer_than_the_window_still_has_a_rate() -> None:
    tally = Tally()
    tally.take(step(0, 1, block(5)))
    tally.take(step(10, 40, block(3)))
    assert tally.tokens_per_s == pytest.approx(0.1)


def test_steps_that_emitted_nothing_have_no_rate() -> None:
    tally = Tally()
    tally.take(step(0, 1))
    assert tally.tokens_per_s is None
    assert tally.counters.mean_accepted_length is None
