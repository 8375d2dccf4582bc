"""Crashes and replays: whatever was delivered is billed, once, and nothing else is.

One database serves all examples of a test; each example has requests of its own.
"""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metering_cases import (
    Rig,
    ScriptedSource,
    WattSource,
    add_tenant,
    admit,
    admitted_request,
    block,
    finish,
    folded,
    recorder_rig,
    scripted_meter,
    step,
)
from sqlalchemy import Engine, func, select

from engine.records import FinishReason, StepRecord
from metering import bodies, clock, event_log, queries
from metering.bodies import EnergyBody
from metering.database import snapshot, transaction
from metering.events import FINAL_STATUSES
from metering.recorder import closer
from metering.tables import engine_counters, meter_windows, usage_events

WORDS = st.sampled_from(["One. ", "two", "\n", "- item\n", "```py\n", "x = 1\n", "```\n", "好", ""])
BLOCKS = st.lists(WORDS, min_size=1, max_size=4)
LIVES = st.lists(st.lists(BLOCKS, max_size=5), min_size=1, max_size=3)
_numbers = itertools.count()


@pytest.fixture
def shared(sqlite_database: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(closer, "DRAIN_S", 0.0)  # a crash drains nothing
    with transaction(sqlite_database) as connection:
        add_tenant(connection)
    return sqlite_database


def schedule(names: list[str], lives: list[list[list[str]]]) -> list[StepRecord]:
    """Steps that run the requests side by side, each to its end."""
    epoch = f"engine-{names[0]}"
    steps = []
    end_ns = clock.monotonic_ns()
    for index in range(max(len(life) for life in lives) + 1):
        blocks = [
            block(index, *life[index], request_id=name)
            for name, life in zip(names, lives, strict=True)
            if index < len(life)
        ]
        ends = [
            finish(name, FinishReason.LENGTH, blocks=len(life))
            for name, life in zip(names, lives, strict=True)
            if index == len(life)
        ]
        start_ns, end_ns = end_ns, clock.monotonic_ns()
        timed = {"start_ns": start_ns, "end_ns": end_ns}
        steps.append(step(index, *blocks, finishes=ends, epoch=epoch, **timed))
    return steps


def check_all_final(database: Engine, names: list[str], rigs: list[Rig]) -> None:
    """Each request is final, was settled once, for what was stated and its stream was offered."""
    shows = any(rig.sink.shows for rig in rigs)
    settled = [each for rig in rigs for each in rig.settlements.summaries]
    for name in names:
        mine = [summary for summary in settled if summary.request_id == name]
        assert len(mine) == 1
        shown = "".join(rig.sink.text(name) for rig in rigs)
        sent = [each for rig in rigs for each in rig.sink.blocks if each.request_id == name]
        with snapshot(database) as connection:
            row = queries.request(connection, None, name)
            events = event_log.of_request(connection, name)
        assert row is not None
        assert row.status in FINAL_STATUSES
        stated = bodies.blocks(events)
        assert mine[0].output_tokens == sum(len(each.token_ids) for each in stated)
        assert [each.block_index for each in stated] == list(range(mine[0].blocks))
        if shows:
            assert row.output == shown
            assert [each.token_ids for each in sent] == [each.token_ids for each in stated]
        else:
            assert not sent
        again = folded(admitted_request(name), events, mine[0].ended_at_us)
        assert again == mine[0]


def check_books(database: Engine) -> None:
    """Counters, events and windows agree."""
    with snapshot(database) as connection:
        emitted, withheld = connection.execute(
            select(
                func.coalesce(func.sum(engine_counters.c.tokens), 0),
                func.coalesce(func.sum(engine_counters.c.withheld_tokens), 0),
            )
        ).one()
        attributed = connection.scalar(
            select(func.coalesce(func.sum(meter_windows.c.requests_uj), 0))
        )
        names = connection.scalars(select(usage_events.c.request_id).distinct()).all()
        events = [each for name in names for each in event_log.of_request(connection, name)]
    energy = sum(each.energy_uj or 0 for each in events if isinstance(each, EnergyBody))
    assert energy == attributed
    tokens = sum(len(each.token_ids) for each in events if hasattr(each, "token_ids"))
    assert tokens == emitted - withheld


@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lives=LIVES,
    crash_at=st.integers(0, 6),
    settles=st.booleans(),
    shows=st.booleans(),
    data=st.data(),
)
def test_a_crash_at_any_point_bills_what_was_delivered_once(
    shared: Engine,
    lives: list[list[list[str]]],
    crash_at: int,
    settles: bool,
    shows: bool,
    data: st.DataObject,
) -> None:
    names = [f"req_{next(_numbers)}" for _ in lives]
    steps = schedule(names, lives)
    with recorder_rig(shared, meter=scripted_meter(WattSource()), with_tenant=False) as first:
        first.sink.shows = shows
        if not settles:
            first.settlements.failures.update(dict.fromkeys(names, 10**6))
        first.track(*names)
        for each in steps[:crash_at]:
            first.recorder.on_steps([each])
        if data.draw(st.booleans()) and first.recorder._books is not None:
            first.recorder._books.write()
    with recorder_rig(shared, meter=scripted_meter(WattSource()), with_tenant=False) as second:
        second.sink.shows = shows
        second.recorder.recover()
        second.recorder.on_steps(steps)  # a replay of requests that are final by now
    check_all_final(shared, names, [first, second])
    check_books(shared)


@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lives=LIVES, shows=st.booleans(), data=st.data())
def test_a_replay_changes_nothing(
    shared: Engine, lives: list[list[list[str]]], shows: bool, data: st.DataObject
) -> None:
    names = [f"req_{next(_numbers)}" for _ in lives]
    steps = schedule(names, lives)
    source = ScriptedSource()  # stands still: no energy, but every path is taken
    with recorder_rig(
        shared, meter=scripted_meter(source), with_tenant=False, energy_wait_s=0
    ) as rig:
        rig.sink.shows = shows
        rig.track(*names)
        sent = 0
        while sent < len(steps):
            again = data.draw(st.integers(0, sent), label="from")
            upto = data.draw(st.integers(sent + 1, len(steps)), label="to")
            rig.recorder.on_steps(steps[again:upto])
            sent = upto
        for name in names:
            rig.sink.wait_for(name)
    check_all_final(shared, names, [rig])
    check_books(shared)


def test_requests_of_many_threads_are_all_settled(sqlite_database: Engine) -> None:
    """Cancellations, refusals and ends from all sides, while steps come in."""
    names = [f"req_{number}" for number in range(24)]
    with recorder_rig(sqlite_database) as rig:
        admit(sqlite_database, *names)
        barrier = threading.Barrier(3)

        def engine() -> None:
            barrier.wait()
            index = 0
            for round_index in range(4):
                for name in names[:16]:
                    over = round_index == 3
                    rig.recorder.on_steps(
                        [
                            step(
                                index,
                                block(round_index, "a ", request_id=name),
                                finishes=[finish(name, FinishReason.LENGTH, 4)] if over else [],
                            )
                        ]
                    )
                    index += 1

        def canceller() -> None:
            barrier.wait()
            for name in names[:8]:
                rig.recorder.cancel(name)

        def refuser() -> None:
            barrier.wait()
            for name in names[16:]:
                rig.recorder.refuse(name, "full")

        for name in names:
            rig.recorder.track(admitted_request(name))
        threads = [threading.Thread(target=each) for each in (engine, canceller, refuser)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in names:
            rig.sink.wait_for(name)
    check_all_final(sqlite_database, names, [rig])
    check_books(sqlite_database)
    assert rig.recorder.live_count == 0
