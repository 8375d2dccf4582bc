"""Who runs, who waits, who makes room; and that everybody finishes."""

import pytest
from engine_sequences import sequence
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.pages import PagePool
from engine.config import EngineConfig
from engine.errors import EngineOverloaded
from engine.scheduler.plan import Plan
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence


def rows(plan: Plan) -> dict[int, int]:
    return {turn.sequence.arrival: turn.rows for turn in plan.turns}


def carry_out(plan: Plan) -> None:
    """Compute what was planned; every turn that draws draws one token."""
    for turn in plan.turns:
        drawn = (7,) if turn.draws else ()
        turn.sequence.advance(turn.sequence.computed + turn.rows, drawn)


def test_decoding_goes_first_then_prefill_in_order_and_in_chunks() -> None:
    pool = PagePool(64, 4)
    scheduler = Scheduler(EngineConfig(max_step_rows=10, prefill_chunk=6), pool)
    scheduler.submit(sequence(pool, 0, prompt_length=3))
    carry_out(scheduler.plan())
    scheduler.submit(sequence(pool, 1, prompt_length=8))
    scheduler.submit(sequence(pool, 2, prompt_length=20))
    plan = scheduler.plan()
    assert rows(plan) == {0: 1, 1: 6, 2: 3}
    assert [turn.draws for turn in plan.turns] == [True, False, False]
    carry_out(plan)
    assert rows(scheduler.plan()) == {0: 1, 1: 2, 2: 6}


def test_drafts_get_the_rows_that_are_left() -> None:
    pool = PagePool(64, 4)
    scheduler = Scheduler(EngineConfig(max_step_rows=10), pool)
    scheduler.submit(sequence(pool, 0, prompt_length=3))
    plan = scheduler.plan()
    assert plan.spare_rows == 7
    assert [turn.sequence.arrival for turn in plan.drafters()] == [0]


def test_the_last_token_is_never_drafted_for() -> None:
    pool = PagePool(64, 4)
    scheduler = Scheduler(EngineConfig(), pool)
    scheduler.submit(sequence(pool, 0, max_tokens=1))
    assert scheduler.plan().drafters() == []


def test_a_draft_preempts_nobody_and_takes_what_space_there_is() -> None:
    pool = PagePool(3, 4)
    scheduler = Scheduler(EngineConfig(), pool)
    scheduler.submit(sequence(pool, 0, prompt_length=3))
    scheduler.submit(sequence(pool, 1, prompt_length=3))
    first, second = scheduler.plan().turns
    assert scheduler.grant(first, 4) == 4
    assert scheduler.grant(second, 4) == 1
    assert scheduler.running == 2


def test_the_youngest_makes_room_and_comes_back_where_it_stopped() -> None:
    pool = PagePool(5, 4)
    scheduler = Scheduler(EngineConfig(), pool)
    old, young = sequence(pool, 0, 6, max_tokens=8), sequence(pool, 1, 6, max_tokens=8)
    scheduler.submit(old)
    scheduler.submit(young)
    while scheduler.running == 2 or not scheduler.preemptions:
        carry_out(scheduler.plan())
    assert scheduler.preemptions == 1
    emitted = young.emitted
    assert (young.computed, scheduler.waiting) == (0, 1)
    assert young.computed_once == 6 + emitted - 1
    scheduler.remove(old)
    carry_out(scheduler.plan())
    assert young.emitted == emitted + 1
    pool.check()


def test_who_was_preempted_comes_back_only_when_it_could_be_computed_to_its_end() -> None:
    pool = PagePool(6, 4)
    scheduler = Scheduler(EngineConfig(), pool)
    old, young = sequence(pool, 0, 8, max_tokens=12), sequence(pool, 1, 6, max_tokens=14)
    scheduler.submit(old)
    scheduler.submit(young)
    while scheduler.running == 2 or not scheduler.preemptions:
        carry_out(scheduler.plan())
    while old.remaining > 1:
        carry_out(scheduler.plan())
        assert scheduler.waiting == 1
    scheduler.remove(old)
    carry_out(scheduler.plan())
    assert (scheduler.running, scheduler.preemptions) == (1, 1)


def test_the_queue_is_bounded() -> None:
    pool = PagePool(8, 4)
    scheduler = Scheduler(EngineConfig(max_running=1, max_waiting=1), pool)
    scheduler.submit(sequence(pool, 0))
    scheduler.submit(sequence(pool, 1))
    with pytest.raises(EngineOverloaded):
        scheduler.submit(sequence(pool, 2))


def test_max_running_holds_even_when_there_is_space() -> None:
    pool = PagePool(64, 4)
    scheduler = Scheduler(EngineConfig(max_running=2), pool)
    for arrival in range(3):
        scheduler.submit(sequence(pool, arrival))
    scheduler.plan()
    assert (scheduler.running, scheduler.waiting) == (2, 1)


def test_a_removed_sequence_leaves_no_page_in_use_whether_it_ran_or_waited() -> None:
    pool = PagePool(64, 4)
    scheduler = Scheduler(EngineConfig(max_running=1), pool)
    running, waiting = sequence(pool, 0), sequence(pool, 1)
    scheduler.submit(running)
    scheduler.submit(waiting)
    carry_out(scheduler.plan())
    scheduler.remove(waiting)
    scheduler.remove(running)
    assert (scheduler.running, scheduler.waiting, pool.used) == (0, 0, 0)


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(0, 12)),
        min_size=1,
        max_size=8,
    ),
    pages=st.integers(8, 20),
    max_running=st.integers(1, 6),
    max_step_rows=st.integers(2, 12),
    prefill_chunk=st.integers(1, 8),
    accept=st.integers(0, 3),
)
@settings(max_examples=100)
def test_everybody_finishes_and_no_step_is_too_big(
    shapes: list[tuple[int, int, int]],
    pages: int,
    max_running: int,
    max_step_rows: int,
    prefill_chunk: int,
    accept: int,
) -> None:
    """Given any arrivals, chunking and scarcity of pages, with drafts that are sometimes right."""
    pool = PagePool(pages, 4)
    config = EngineConfig(
        max_running=max_running, max_step_rows=max_step_rows, prefill_chunk=prefill_chunk
    )
    scheduler = Scheduler(config, pool)
    arriving = [
        (step, sequence(pool, arrival, prompt, new))
        for arrival, (prompt, new, step) in enumerate(shapes)
    ]
    live: list[Sequence] = []
    for step in range(3000):
        for at, newcomer in arriving:
            if at == step:
                scheduler.submit(newcomer)
                live.append(newcomer)
        plan = scheduler.plan()
        assert sum(turn.rows for turn in plan.turns) + plan.spare_rows == max_step_rows
        assert not live or plan.turns
        spare = plan.spare_rows
        nodes = {}
        for turn in plan.drafters():
            nodes[turn.sequence] = scheduler.grant(turn, min(accept, spare))
            spare -= nodes[turn.sequence]
        for turn in plan.turns:
            running, start = turn.sequence, turn.sequence.computed
            assert running.table.capacity >= start + turn.rows + nodes.get(running, 0)
            drawn = min(1 + nodes.get(running, 0), running.remaining) if turn.draws else 0
            running.advance(start + turn.rows + max(0, drawn - 1), (7,) * drawn)
            if running.remaining == 0:
                scheduler.remove(running)
                live.remove(running)
        pool.check()
        if not live and step > 12:
            break
    assert not live
    assert (scheduler.running, scheduler.waiting, pool.used) == (0, 0, 0)
