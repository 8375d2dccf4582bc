"""What the recorder does when its neighbours fail: the database, a gate, a settlement, a stream."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import psycopg
import pytest
from metering_cases import (
    Rig,
    WattSource,
    admitted_request,
    block,
    finish,
    folded,
    recorder_rig,
    scripted_meter,
    step,
)
from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import OperationalError

from engine.records import FinishReason
from metering import clock, event_log, prepared
from metering.database import snapshot
from metering.events import EndedBy, EventKind, RequestStatus, RequestSummary
from metering.recorder import batch as batches
from metering.recorder import closer, energy_books, recorder
from metering.recorder.live import KEPT_FACTS
from metering.tables import engine_counters, usage_events


def wait_for_energy(rig: Rig, count: int) -> None:
    """Wait until energy was stated so often."""
    stated = select(func.count()).where(usage_events.c.kind == EventKind.ENERGY.value)
    give_up_at = time.monotonic() + 20
    while True:
        with snapshot(rig.database) as connection:
            if connection.scalar(stated) >= count:
                return
        assert time.monotonic() < give_up_at, "no energy was stated"
        rig.recorder._closer.wake()
        time.sleep(0.005)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "RETRY_S", 0.0)
    monkeypatch.setattr(closer, "RETRY_NS", 10**6)
    monkeypatch.setattr(closer, "IDLE_POLL_S", closer.POLL_S)


@pytest.fixture
def rig(sqlite_database: Engine, impatient: None) -> Iterator[Rig]:
    with recorder_rig(sqlite_database) as made:
        yield made


@pytest.fixture
def rig_on_each(database: Engine, impatient: None) -> Iterator[Rig]:
    """For failures inside a transaction, which the two databases take differently."""
    with recorder_rig(database) as made:
        yield made


@contextmanager
def failing_inserts(table: str, times: int) -> Iterator[None]:
    """Let the database fail the next insertions into a table."""
    left = itertools.count(times, -1)

    execute = prepared._execute

    def fail(connection: Connection, sql: str, *rest: Any, **how: bool) -> Any:
        if sql.startswith(f"INSERT INTO {table}") and next(left) > 0:
            raise OperationalError(sql, None, Exception("disk full"))
        return execute(connection, sql, *rest, **how)

    with patch.object(prepared, "_execute", fail):
        yield


def counters(rig: Rig) -> tuple[int, int, int, int]:
    with snapshot(rig.database) as connection:
        c = engine_counters.c
        return tuple(
            connection.execute(select(c.steps, c.blocks, c.tokens, c.withheld_tokens)).one()
        )


def events(rig: Rig) -> int:
    with snapshot(rig.database) as connection:
        return connection.scalar(select(func.count(usage_events.c.seq))) or 0


def test_a_transaction_that_fails_is_worked_out_again(rig_on_each: Rig) -> None:
    rig = rig_on_each
    rig.track("req_1")
    with failing_inserts("usage_events", 2):
        rig.recorder.on_steps([step(0, block(0, "One. Tw")), step(1, block(1, "o."))])
    assert rig.sink.text() == "One. Two."
    assert counters(rig) == (2, 2, 2, 0)
    rig.recorder.on_steps([step(2, finishes=[finish(blocks=2)])])
    assert len(rig.sink.wait_for("req_1").units) == 2


def test_batches_that_fail_again_and_again_leave_the_summary_that_the_log_gives(
    sqlite_database: Engine, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A meter runs ahead of the database and is taken back, with energy stated in between."""
    monkeypatch.setattr(energy_books, "WRITE_NS", 0)
    with recorder_rig(sqlite_database, meter=scripted_meter(WattSource())) as rig:
        rig.track("req_1")
        rig.gate.reaches["req_1"] = 10**6
        start_ns = clock.monotonic_ns()
        for index in range(3 * KEPT_FACTS):
            end_ns = clock.monotonic_ns()
            words = ("# One\n", "Two. \xe9", "```json\n[1,", "2]\n```\n")
            each = block(index, words[index % 4], accepted=1, drafted=2, logprob=-index / 1000)
            with failing_inserts("usage_events", index % 2):
                rig.recorder.on_steps([step(index, each, start_ns=start_ns, end_ns=end_ns)])
            start_ns = end_ns
            rig.recorder._closer.wake()
            if index % KEPT_FACTS == KEPT_FACTS // 2:
                wait_for_energy(rig, 1 + index // KEPT_FACTS)
        rig.recorder.on_steps([step(index + 1, finishes=[finish(blocks=index + 1)])])
        summary = rig.sink.wait_for("req_1")
    with snapshot(sqlite_database) as connection:
        stated = event_log.of_request(connection, "req_1")
    assert folded(admitted_request(), stated, summary.ended_at_us) == summary
    assert summary.energy.energy_uj is not None
    assert rig.gate.seen == []


def test_what_cannot_be_stored_fails_its_requests_and_is_never_shown(rig_on_each: Rig) -> None:
    rig = rig_on_each
    rig.track("req_1", "req_2")
    rig.recorder.on_steps([step(0, block(0, "kept"))])
    with failing_inserts("usage_events", recorder.ATTEMPTS_MAX):
        rig.recorder.on_steps([step(1, block(1, "lost"))])
    assert rig.canceller.cancelled == ["req_1"]
    rig.recorder.on_steps(
        [
            step(2, block(0, "fine", request_id="req_2"), finishes=[finish(blocks=2)]),
        ]
    )
    summary = rig.sink.wait_for("req_1")
    assert (summary.status, summary.ended_by) == (RequestStatus.FAILED, EndedBy.OPERATOR)
    assert (rig.sink.text("req_1"), rig.sink.text("req_2")) == ("kept", "fine")
    assert counters(rig) == (3, 3, 3, 1), "the counts of the failed batch are made up for"


def test_nobody_waits_for_an_end_that_cannot_be_stored_and_it_is_stored_later(rig: Rig) -> None:
    rig.track("req_1")
    with failing_inserts("request_summaries", closer.ATTEMPTS_WAITED):
        rig.recorder.on_steps([step(0, block(0, "a"), finishes=[finish(blocks=1)])])
        assert rig.sink.wait_for("req_1").status is RequestStatus.COMPLETED
    assert rig.sink.deferred == ["req_1"]


def test_a_gate_that_fails_for_one_request_fails_only_that_one(rig: Rig) -> None:
    rig.track("req_1", "req_2")

    def fault(summary: RequestSummary) -> None:
        if summary.request_id == "req_1":
            raise LookupError("no hold")

    rig.gate.fault = fault
    rig.recorder.on_steps([step(0, block(0, "a"), block(0, "b", request_id="req_2"))])
    assert (rig.sink.text("req_1"), rig.sink.text("req_2")) == ("", "b")
    rig.recorder.on_steps([step(1, finishes=[finish(blocks=1)])])
    assert rig.sink.wait_for("req_1").status is RequestStatus.FAILED


def test_a_gate_whose_query_fails_for_one_request_fails_only_that_one(rig_on_each: Rig) -> None:
    rig = rig_on_each
    rig.track("req_1", "req_2")
    cover = rig.gate.cover

    def broken(connection: Connection, summary: RequestSummary):  # type: ignore[no-untyped-def]
        if summary.request_id == "req_1":
            connection.execute(text("SELECT no_such_column FROM requests"))
        return cover(connection, summary)

    rig.gate.cover = broken  # type: ignore[method-assign]
    rig.recorder.on_steps([step(0, block(0, "a"), block(0, "b", request_id="req_2"))])
    assert (rig.sink.text("req_1"), rig.sink.text("req_2")) == ("", "b")
    assert rig.canceller.cancelled == ["req_1"]


def test_a_block_that_contradicts_an_earlier_one_fails_its_request(rig_on_each: Rig) -> None:
    rig = rig_on_each
    rig.track("req_1", "req_2")
    rig.recorder.on_steps([step(0, block(0, "said"))])
    rig.recorder.on_steps([step(1, block(0, "unsaid"), block(0, "b", request_id="req_2"))])
    assert (rig.sink.text("req_1"), rig.sink.text("req_2")) == ("said", "b")
    rig.recorder.on_steps([step(2, finishes=[finish(blocks=1)])])
    assert rig.sink.wait_for("req_1").status is RequestStatus.FAILED
    assert counters(rig)[2:] == (3, 1)


def test_a_gap_between_blocks_fails_the_request(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "a"))])
    rig.recorder.on_steps([step(1, block(2, "c"))])
    rig.recorder.on_steps([step(2, finishes=[finish(blocks=3)])])
    summary = rig.sink.wait_for("req_1")
    assert (summary.status, summary.output_tokens) == (RequestStatus.FAILED, 1)


def test_a_bug_in_working_out_a_batch_fails_its_requests_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.track("req_1")

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(batches.event_log, "append", broken)
    rig.recorder.on_steps([step(0, block(0, "a"))])
    monkeypatch.undo()
    rig.recorder.on_steps([step(1, finishes=[finish(blocks=1)])])
    assert rig.sink.wait_for("req_1").status is RequestStatus.FAILED
    assert rig.sink.text() == ""


def test_a_settlement_that_fails_is_tried_again_and_blocks_nobody(rig: Rig) -> None:
    rig.track("req_1", "req_2")
    rig.settlements.failures["req_1"] = 3
    rig.recorder.on_steps(
        [
            step(0, block(0, "a"), block(0, "b", request_id="req_2")),
            step(1, finishes=[finish("req_1"), finish("req_2")]),
        ]
    )
    rig.sink.wait_for("req_2")
    rig.sink.wait_for("req_1")
    assert [each.request_id for each in rig.settlements.summaries] == ["req_2", "req_1"]
    assert events(rig) == 4, "the failed attempts left no terminal event"


def test_a_refusal_that_cannot_be_settled_now_is_settled_later(rig: Rig) -> None:
    rig.track("req_1")
    rig.settlements.failures["req_1"] = 1
    rig.recorder.refuse("req_1", "too busy")
    assert rig.recorder.live_ids == ("req_1",), "its hold is still to be renewed"
    assert rig.sink.wait_for("req_1").status is RequestStatus.REFUSED
    assert rig.recorder.live_ids == ()


def test_a_stream_that_fails_does_not_stop_the_recorder(rig: Rig) -> None:
    rig.track("req_1")

    def broken(_: object) -> None:
        raise ConnectionError("nobody there")

    rig.sink.deliver = broken  # type: ignore[method-assign]
    rig.recorder.on_steps([step(0, block(0, "a"), finishes=[finish()])])
    assert rig.sink.wait_for("req_1").status is RequestStatus.COMPLETED


def test_an_engine_that_never_answers_a_cancellation_is_not_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closer, "CANCEL_GRACE_NS", 0)
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "a"))])
    rig.recorder.cancel("req_1")
    summary = rig.sink.wait_for("req_1")
    assert (summary.status, summary.output_tokens) == (RequestStatus.CANCELLED, 1)
    # What the engine emits after all is withheld and harmless.
    rig.recorder.on_steps(
        [step(1, block(1, "late"), finishes=[finish(reason=FinishReason.CANCELLED, blocks=2)])]
    )
    assert counters(rig) == (2, 2, 2, 1)


def test_a_canceller_that_fails_does_not_stop_the_recorder(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(rig.canceller, "cancel", broken)
    rig.track("req_1")
    rig.gate.tokens_max["req_1"] = 1
    rig.recorder.on_steps([step(0, block(0, "a", "b"))])
    assert rig.sink.text() == "a"


def test_steps_and_a_recovery_before_an_engine_is_attached_are_an_error(database: Engine) -> None:
    unattached = recorder.Recorder(
        database,
        settler=None,  # type: ignore[arg-type]
        gate=None,  # type: ignore[arg-type]
        sink=None,  # type: ignore[arg-type]
    )
    with pytest.raises(RuntimeError, match="attach"):
        unattached.on_steps([step(0)])
    with pytest.raises(RuntimeError, match="attach"):
        unattached.recover()


def test_the_end_keeps_its_time_through_every_attempt(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.track("req_1")
    rig.settlements.failures["req_1"] = 2
    times = itertools.count(5_000_000)
    monkeypatch.setattr(clock, "now_us", lambda: next(times))
    rig.recorder.refuse("req_1", "too busy")
    summary = rig.sink.wait_for("req_1")
    with snapshot(rig.database) as connection:
        stored = connection.scalar(select(usage_events.c.event_time_us))
    assert summary.ended_at_us == stored
    assert summary.ended_at_us <= 5_000_002


def test_what_was_committed_counts_once_although_every_answer_of_the_database_is_lost(
    postgres_database: Engine, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorder_rig(postgres_database, meter=scripted_meter(WattSource())) as rig:
        rig.gate.reaches["req_1"] = 10**6
        rig.track("req_1")
        commit = postgres_database.dialect.do_commit

        def commit_and_break(connection: Any) -> None:
            commit(connection)
            connection.driver_connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(postgres_database.dialect, "do_commit", commit_and_break)
        start_ns = clock.monotonic_ns()
        for index in range(3):
            end_ns = clock.monotonic_ns()
            more = {"finishes": [finish(blocks=3, tokens=3)]} if index == 2 else {}
            rig.recorder.on_steps(
                [step(index, block(index, "word "), start_ns=start_ns, end_ns=end_ns, **more)]
            )
            start_ns = end_ns
        summary = rig.sink.wait_for("req_1")
        assert (summary.status, summary.output_tokens) == (RequestStatus.COMPLETED, 3)
        assert summary.energy.energy_uj is not None
        monkeypatch.undo()
    with snapshot(postgres_database) as connection:
        counted = connection.execute(select(engine_counters.c.blocks, engine_counters.c.tokens))
        assert counted.all() == [(3, 3)]
        assert folded(admitted_request("req_1"), event_log.of_request(connection, "req_1"), 0)


def test_who_waits_hears_of_an_end_although_the_attempt_that_wrote_it_seemed_to_fail(
    rig: Rig,
) -> None:
    attempts = itertools.count()
    real = closer.transaction

    @contextmanager
    def losing(database: Engine) -> Iterator[Connection]:
        with real(database) as connection:
            yield connection
        if not next(attempts):
            raise OperationalError("COMMIT", {}, Exception("no answer"))

    with patch.object(closer, "transaction", losing):
        rig.track("req_1")
        rig.recorder.on_steps([step(0, block(0, "Hi"), finishes=[finish(blocks=1, tokens=1)])])
        assert rig.sink.wait_for("req_1").output_tokens == 1
    assert next(attempts) == 1  # the second found that it was done
    assert rig.recorder.live_count == 0
