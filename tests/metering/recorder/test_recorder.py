"""From steps to durable events, delivered blocks and one settled end, on both databases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from metering_cases import (
    EPOCH,
    Rig,
    admitted_request,
    block,
    finish,
    folded,
    recorder_rig,
    step,
)
from sqlalchemy import Engine, func, select

from engine.records import FinishReason, Work
from metering import event_log, queries
from metering.committed_blocks import replay
from metering.database import snapshot
from metering.events import ConfidenceTier, EndedBy, RequestStatus, UnitState
from metering.protocols import CommittedBlock
from metering.recorder import STOPPED
from metering.tables import engine_counters, requests, usage_events


@pytest.fixture
def rig(database: Engine) -> Iterator[Rig]:
    with recorder_rig(database) as made:
        yield made


def counters(rig: Rig) -> dict[str, int]:
    with snapshot(rig.database) as connection:
        row = connection.execute(
            select(engine_counters).where(engine_counters.c.engine_epoch == EPOCH)
        ).one()
    return {name: getattr(row, name) for name in ("steps", "blocks", "tokens", "withheld_tokens")}


def event_ids(rig: Rig) -> list[str]:
    with snapshot(rig.database) as connection:
        return list(connection.scalars(select(usage_events.c.id).order_by(usage_events.c.seq)))


def test_a_request_runs_from_blocks_to_a_settled_end(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "Hello", " world."), work=None)])
    rig.recorder.on_steps([step(1, block(1, " Bye", ""), finishes=[finish(blocks=2, tokens=4)])])
    summary = rig.sink.wait_for("req_1")
    assert rig.sink.text() == "Hello world. Bye"
    assert summary.status is RequestStatus.COMPLETED
    assert summary.finish_reason == "stop"
    assert summary.ended_by is EndedBy.MODEL
    assert summary.output_tokens == 4
    assert [(unit.kind, unit.state, unit.tokens) for unit in summary.units] == [
        ("sentence", UnitState.COMPLETE, 2),
        ("sentence", UnitState.COMPLETE, 2),
    ]
    assert summary.confidence is not None
    assert summary.confidence.sum_logprob == "-0.040000"
    assert summary.confidence.geo_mean == "0.9900"
    assert summary.confidence.tier is ConfidenceTier.STANDARD
    assert rig.settlements.summaries == [summary]
    assert event_ids(rig) == ["req_1/block/0", "req_1/block/1", "req_1/terminal/0"]
    with snapshot(rig.database) as connection:
        row = queries.request(connection, "acme", "req_1")
        assert row is not None
        assert (row.status, row.output) == (RequestStatus.COMPLETED, "Hello world. Bye")
        assert queries.summary(connection, "req_1") == summary
    assert rig.recorder.live_count == 0


def test_a_block_is_durable_before_it_is_delivered(rig: Rig) -> None:
    rig.track("req_1")
    stored_at_delivery = []
    deliver = rig.sink.deliver

    def look_and_deliver(request_id: str, committed: Sequence[CommittedBlock]) -> None:
        with snapshot(rig.database) as connection:
            stored_at_delivery.append(connection.scalar(select(func.count(usage_events.c.seq))))
        deliver(request_id, committed)

    rig.sink.deliver = look_and_deliver  # type: ignore[method-assign]
    rig.recorder.on_steps([step(0, block(0, "a")), step(1, block(1, "b"))])
    assert stored_at_delivery == [1]
    assert [each.text for each in rig.sink.blocks] == ["a", "b"]


def test_the_first_block_moves_the_row_to_running(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "a"))])
    with snapshot(rig.database) as connection:
        assert connection.scalar(select(requests.c.status)) == "running"


def test_steps_seen_before_change_nothing(rig: Rig) -> None:
    rig.track("req_1")
    steps = [step(0, block(0, "a")), step(1, block(1, "b"))]
    rig.recorder.on_steps(steps)
    rig.recorder.on_steps(steps)
    assert counters(rig) == {"steps": 2, "blocks": 2, "tokens": 2, "withheld_tokens": 0}
    assert event_ids(rig) == ["req_1/block/0"]
    assert rig.sink.text() == "ab"


def test_the_stored_events_fold_into_the_summary_that_was_settled(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "# Title", "\n", "Te", "xt"), block_two())])
    rig.recorder.on_steps([step(1, finishes=[finish(reason=FinishReason.LENGTH, blocks=2)])])
    summary = rig.sink.wait_for("req_1")
    with snapshot(rig.database) as connection:
        events = event_log.of_request(connection, "req_1")
    again = folded(admitted_request(), events, summary.ended_at_us)
    assert again == summary


def block_two():  # type: ignore[no-untyped-def]
    return block(1, " and", " more", accepted=1, drafted=3)


def test_a_cancelled_request_pays_for_the_blocks_committed_before(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "one"))])
    rig.recorder.cancel("req_1")
    rig.recorder.cancel("req_1")
    rig.recorder.on_steps(
        [
            step(1, block(1, " two", " three")),
            step(2, finishes=[finish(reason=FinishReason.CANCELLED, blocks=2)]),
        ]
    )
    summary = rig.sink.wait_for("req_1")
    assert rig.canceller.cancelled == ["req_1"]
    assert (summary.status, summary.ended_by) == (RequestStatus.CANCELLED, EndedBy.TENANT)
    assert summary.output_tokens == 1
    assert rig.sink.text() == "one"
    assert counters(rig) == {"steps": 3, "blocks": 2, "tokens": 3, "withheld_tokens": 2}


@pytest.mark.parametrize("at_once", [True, False])
def test_who_leaves_with_the_last_block_in_hand_has_completed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Its departure is heard of before the end is, which comes with the block or after it."""
    deliver = rig.sink.deliver

    def leave(request_id: str, blocks: Sequence[CommittedBlock]) -> None:
        deliver(request_id, blocks)
        rig.recorder.cancel(request_id)

    monkeypatch.setattr(rig.sink, "deliver", leave)
    rig.track("req_1")
    end = [finish(reason=FinishReason.LENGTH, blocks=1)]
    rig.recorder.on_steps([step(0, block(0, "all"), finishes=end if at_once else [])])
    rig.recorder.on_steps([step(1, finishes=[] if at_once else end)])
    summary = rig.sink.wait_for("req_1")
    assert (summary.status, summary.finish_reason) == (RequestStatus.COMPLETED, "length")
    assert summary.output_tokens == 1


def test_a_cancellation_after_the_end_changes_nothing(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "x", ""), finishes=[finish()])])
    rig.recorder.cancel("req_1")
    assert rig.sink.wait_for("req_1").status is RequestStatus.COMPLETED
    rig.recorder.cancel("req_1")
    rig.recorder.cancel("never heard of")


def test_a_refused_request_is_settled_when_refuse_returns(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.refuse("req_1", "the queue is full")
    [summary] = rig.settlements.summaries
    assert (summary.status, summary.ended_by) == (RequestStatus.REFUSED, EndedBy.OPERATOR)
    assert summary.output_tokens == 0
    assert summary.units == ()
    assert summary.confidence is None
    assert summary.review_reason is None
    assert summary.energy.energy_uj is None
    assert rig.recorder.live_ids == ()


def test_records_of_unknown_requests_are_counted_and_not_fatal(rig: Rig) -> None:
    rig.recorder.on_steps(
        [step(0, block(0, "x", "y", request_id="stray"), finishes=[finish("stray")])]
    )
    assert rig.recorder.unknown_records == 2
    assert counters(rig) == {"steps": 1, "blocks": 1, "tokens": 2, "withheld_tokens": 2}


@pytest.mark.parametrize(
    ("reason", "status", "ended_by"),
    [
        (FinishReason.STOP, RequestStatus.COMPLETED, EndedBy.MODEL),
        (FinishReason.LENGTH, RequestStatus.COMPLETED, EndedBy.TENANT),
        (FinishReason.DEADLINE, RequestStatus.COMPLETED, EndedBy.TENANT),
        (FinishReason.BUDGET, RequestStatus.COMPLETED, EndedBy.TENANT),
        (FinishReason.ERROR, RequestStatus.FAILED, EndedBy.OPERATOR),
    ],
)
def test_every_finish_reason_has_its_status(
    rig: Rig, reason: FinishReason, status: RequestStatus, ended_by: EndedBy
) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "x"), finishes=[finish(reason=reason)])])
    summary = rig.sink.wait_for("req_1")
    assert (summary.status, summary.finish_reason, summary.ended_by) == (
        status,
        reason.value,
        ended_by,
    )


def test_what_a_closing_engine_cuts_off_is_our_end_and_not_the_tenants(rig: Rig) -> None:
    """Nobody cancelled it, so its open text is at the operator's price."""
    rig.track("req_1")
    rig.recorder.on_steps(
        [step(0, block(0, "x"), finishes=[finish(reason=FinishReason.CANCELLED)])]
    )
    summary = rig.sink.wait_for("req_1")
    assert (summary.status, summary.finish_reason, summary.ended_by) == (
        RequestStatus.FAILED,
        "error",
        EndedBy.OPERATOR,
    )


@pytest.mark.parametrize("left_too", [True, False])
def test_a_stopped_request_is_our_end_with_the_blocks_committed_before(
    rig: Rig, left_too: bool
) -> None:
    """Also where its client hears of it and leaves: the first cut stands."""
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "one"))])
    rig.recorder.stop("req_1")
    if left_too:
        rig.recorder.cancel("req_1")
    rig.recorder.on_steps(
        [
            step(1, block(1, " two")),
            step(2, finishes=[finish(reason=FinishReason.CANCELLED, blocks=2)]),
        ]
    )
    summary = rig.sink.wait_for("req_1")
    assert rig.canceller.cancelled == ["req_1"]
    assert (summary.status, summary.ended_by) == (RequestStatus.FAILED, EndedBy.OPERATOR)
    assert summary.output_tokens == 1
    with snapshot(rig.database) as connection:
        assert queries.failure(connection, "req_1") == STOPPED


def test_what_was_whole_when_it_was_stopped_has_completed(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "all"))])
    rig.recorder.stop("req_1")
    rig.recorder.on_steps([step(1, finishes=[finish(reason=FinishReason.LENGTH, blocks=1)])])
    summary = rig.sink.wait_for("req_1")
    assert (summary.status, summary.ended_by) == (RequestStatus.COMPLETED, EndedBy.TENANT)


def test_a_block_that_never_came_fails_the_request(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "x")), step(1, finishes=[finish(blocks=2)])])
    summary = rig.sink.wait_for("req_1")
    assert (summary.status, summary.ended_by) == (RequestStatus.FAILED, EndedBy.OPERATOR)
    assert summary.output_tokens == 1


def test_a_code_point_split_between_blocks_is_delivered_when_whole(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, b"\xf0\x9f")), step(1, block(1, b"\x8e\x89!"))])
    assert [each.text for each in rig.sink.blocks] == ["", "🎉!"]


def test_a_code_point_cut_off_by_the_end_is_shown_as_a_replacement(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps(
        [step(0, block(0, "a", b"\xf0\x9f"), finishes=[finish(reason=FinishReason.LENGTH)])]
    )
    rig.sink.wait_for("req_1")
    assert rig.sink.text() == "a\ufffd"
    with snapshot(rig.database) as connection:
        row = queries.request(connection, None, "req_1")
        events = event_log.of_request(connection, "req_1")
    assert row is not None
    assert row.output == "a\ufffd"
    summary = rig.sink.summaries["req_1"]
    assert folded(admitted_request(), events, summary.ended_at_us) == summary


def test_what_was_never_shown_is_not_in_the_stored_output(rig: Rig) -> None:
    """The block was delivered before the end was known, so its open code point was dropped."""
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "a", b"\xf0\x9f"))])
    rig.recorder.on_steps([step(1, finishes=[finish(reason=FinishReason.DEADLINE)])])
    summary = rig.sink.wait_for("req_1")
    with snapshot(rig.database) as connection:
        row = queries.request(connection, None, "req_1")
    assert row is not None
    assert row.output == rig.sink.text() == "a"
    assert summary.units[0].tokens == 2


def test_a_nul_byte_is_delivered_and_stored_as_a_replacement(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, block(0, "a\0b", ""), finishes=[finish()])])
    rig.sink.wait_for("req_1")
    with snapshot(rig.database) as connection:
        row = queries.request(connection, None, "req_1")
    assert row is not None
    assert row.output == rig.sink.text() == "a\ufffdb"


def test_work_without_a_block_is_recorded_too(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps([step(0, work={"req_1": Work(prefill_tokens=48)})])
    assert counters(rig) == {"steps": 1, "blocks": 0, "tokens": 0, "withheld_tokens": 0}


def test_a_request_is_tracked_once(rig: Rig) -> None:
    rig.track("req_1")
    with pytest.raises(ValueError, match="tracked already"):
        rig.recorder.track(admitted_request())


def test_block_statistics_go_with_the_block(rig: Rig) -> None:
    rig.track("req_1")
    rig.recorder.on_steps(
        [
            step(
                0,
                block(
                    0, "One. ", "Two. ", "Th", logprobs=(-0.1, -0.2, -0.3), accepted=2, drafted=4
                ),
            )
        ]
    )
    [sent] = rig.sink.blocks
    assert (sent.units_closed, sent.accepted_tokens, sent.drafted_depth) == (2, 2, 4)
    assert (sent.geo_mean, sent.joint_prob) == ("0.8187", "0.5488")
    with snapshot(rig.database) as connection:
        assert replay(connection, sent.request_id) == [sent]
