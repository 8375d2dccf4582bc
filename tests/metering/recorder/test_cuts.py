"""Where a hold no longer covers: the block is cut at the longest covered prefix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from metering_cases import Gate, Rig, block, finish, recorder_rig, step
from sqlalchemy import Engine, select
from sqlalchemy.exc import OperationalError

from engine.records import FinishReason, Work
from metering import event_log
from metering.bodies import BlockBody
from metering.committed_blocks import replay
from metering.database import snapshot
from metering.events import EndedBy, RequestStatus, RequestSummary
from metering.protocols import Cover
from metering.tables import engine_counters


@pytest.fixture
def rig(database: Engine) -> Iterator[Rig]:
    with recorder_rig(database) as made:
        yield made


def withheld_tokens(rig: Rig) -> int:
    with snapshot(rig.database) as connection:
        return int(connection.scalar(select(engine_counters.c.withheld_tokens)) or 0)


@pytest.mark.parametrize(
    ("short", "ended_by"),
    [(Cover.MAX_COST, EndedBy.TENANT), (Cover.CREDIT, EndedBy.OPERATOR)],
)
def test_output_is_cut_at_the_longest_covered_prefix(
    rig: Rig, short: Cover, ended_by: EndedBy
) -> None:
    rig.track("req_1")
    rig.gate.tokens_max["req_1"], rig.gate.short = 4, short
    rig.recorder.on_steps(
        [
            step(0, block(0, "a", "b", accepted=1, drafted=1)),
            step(1, block(1, "c", "d", "e", "f", accepted=3, drafted=4)),
            step(2, block(2, "g")),
        ]
    )
    assert rig.sink.text() == "abcd"
    assert rig.canceller.cancelled == ["req_1"]
    rig.recorder.on_steps(
        [step(3, finishes=[finish(reason=FinishReason.CANCELLED, blocks=3, tokens=7)])]
    )
    summary = rig.sink.wait_for("req_1")
    assert (summary.status, summary.finish_reason) == (RequestStatus.COMPLETED, "budget")
    assert summary.ended_by is ended_by
    assert (summary.output_tokens, summary.blocks) == (4, 2)
    assert withheld_tokens(rig) == 3
    with snapshot(rig.database) as connection:
        cut = event_log.of_request(connection, "req_1")[1]
    assert isinstance(cut, BlockBody)
    assert (cut.token_ids, cut.withheld_tokens) == ((100, 101), 2)
    assert (cut.accepted_tokens, cut.drafted_depth) == (2, 2)


def test_a_block_of_which_nothing_is_covered_leaves_no_event(rig: Rig) -> None:
    rig.track("req_1")
    rig.gate.tokens_max["req_1"] = 0
    rig.recorder.on_steps(
        [step(0, block(0, "a", "b"), finishes=[finish(reason=FinishReason.LENGTH)])]
    )
    summary = rig.sink.wait_for("req_1")
    assert (summary.finish_reason, summary.output_tokens, summary.blocks) == ("budget", 0, 0)
    assert rig.sink.blocks == []
    assert rig.canceller.cancelled == [], "the engine knows that it is over"
    with snapshot(rig.database) as connection:
        assert replay(connection, "req_1") == []


def test_the_gate_is_asked_what_the_end_will_say(rig: Rig) -> None:
    """The charge that the hold covers is the charge that the settlement computes."""
    rig.track("req_1")
    rig.gate.tokens_max["req_1"] = 2
    rig.recorder.on_steps([step(0, block(0, "Hi. ", "There", " you"), work={})])
    rig.recorder.on_steps([step(1, finishes=[finish(reason=FinishReason.CANCELLED)])])
    settled = rig.sink.wait_for("req_1")
    covered = rig.gate.seen[-1]
    assert [each.output_tokens for each in rig.gate.seen] == [3, 2]

    def priced(summary: RequestSummary) -> object:
        return (summary.units, summary.information_ubits, summary.confidence, summary.ended_by)

    assert priced(covered) == priced(settled)


def test_one_request_is_cut_and_its_neighbour_goes_on(rig: Rig) -> None:
    rig.track("req_1", "req_2")
    rig.gate.tokens_max["req_1"] = 1
    rig.recorder.on_steps([step(0, block(0, "a", "b"), block(0, "x", "y", request_id="req_2"))])
    rig.recorder.on_steps([step(1, block(1, "c"), block(1, "z", request_id="req_2"))])
    assert (rig.sink.text("req_1"), rig.sink.text("req_2")) == ("a", "xyz")


def test_a_longer_prefix_may_be_covered_where_a_shorter_is_not(rig: Rig) -> None:
    """A unit that closes can make a longer output cheaper: the longest covered one is taken."""

    class Whimsical(Gate):
        def cover(self, connection: object, stopped_here: RequestSummary) -> Cover:
            covered = stopped_here.output_tokens == 3
            return Cover.COVERED if covered else Cover.MAX_COST

    rig.track("req_1")
    rig.gate.cover = Whimsical().cover  # type: ignore[method-assign]
    rig.recorder.on_steps(
        [step(0, block(0, "a", "b", "c", "d", "e"), work={"req_1": Work(verified_nodes=1)})]
    )
    assert rig.sink.text() == "abc"


def test_a_cut_through_a_code_point_shows_a_replacement(rig: Rig) -> None:
    rig.track("req_1")
    rig.gate.tokens_max["req_1"] = 2
    rig.recorder.on_steps([step(0, block(0, "a", b"\xe5\xa5", b"\xbd"))])
    assert rig.sink.text() == "a\ufffd"


def test_the_gate_is_asked_only_beyond_what_a_hold_reaches(rig: Rig) -> None:
    rig.track("req_1")
    rig.gate.reaches["req_1"] = 3
    rig.gate.tokens_max["req_1"] = 5
    rig.recorder.on_steps([step(0, block(0, "a", "b"))])
    rig.recorder.on_steps([step(1, block(1, "c")), step(2, block(2, "d"))])
    assert [asked.output_tokens for asked in rig.gate.seen] == [4]
    rig.recorder.on_steps([step(3, block(3, "e", "f"))])
    assert rig.sink.text() == "abcde"
    assert rig.canceller.cancelled == ["req_1"]


@pytest.mark.parametrize("attempts", [1, 3])
def test_what_was_covered_without_asking_is_not_kept_of_a_batch_that_failed(
    rig: Rig, attempts: int
) -> None:
    """Blocks of one batch share a meter, and a batch that is tried again begins anew."""
    rig.track("req_1", "req_2")
    rig.gate.reaches = {"req_1": 9, "req_2": 1}
    left = [attempts]

    def fault(summary: RequestSummary) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OperationalError("SELECT", None, Exception("the database is away"))

    rig.gate.fault = fault
    rig.recorder.on_steps(
        [
            step(0, block(0, "a", "b"), block(0, "x", request_id="req_2")),
            step(1, block(1, "c"), block(1, "y", request_id="req_2")),
        ]
    )
    assert (rig.sink.text("req_1"), rig.sink.text("req_2")) == ("abc", "xy")
    rig.recorder.on_steps([step(2, finishes=[finish(blocks=2, tokens=3)])])
    summary = rig.sink.wait_for("req_1")
    assert (summary.output_tokens, summary.blocks) == (3, 2)
