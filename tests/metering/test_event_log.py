"""Events: one spelling, one identity, a replay for nothing, a contradiction refused."""

from __future__ import annotations

import msgspec
import pytest
from metering_cases import VOCAB_SIZE, add_tenant, admit, block, step
from sqlalchemy import Engine, func, select

from engine.records import Work
from metering import bodies, canonical_json, event_log
from metering.bodies import BlockBody, BlockRun, TerminalBody, UsageEvent
from metering.database import snapshot, transaction
from metering.errors import EventConflict
from metering.events import EndedBy, EventKind, RequestStatus
from metering.tables import usage_events

TERMINAL = TerminalBody(
    request_id="req_1",
    status=RequestStatus.COMPLETED,
    finish_reason="stop",
    ended_by=EndedBy.MODEL,
    blocks=1,
    tokens=2,
    output_sha256="00",
    replaced_tail=False,
    detail=None,
)


def body(index: int = 0, *words: str | bytes) -> BlockBody:
    record = block(index, *(words or ("Hi", b"\xff\x00")))
    return bodies.block_body(
        step(3, start_ns=5, end_ns=9), record, Work(verified_nodes=1), VOCAB_SIZE
    )


def event(index: int = 0, *words: str | bytes, at_us: int = 1_700_000_000_123_456) -> UsageEvent:
    return bodies.state(BlockRun((body(index, *words),)), "acme", at_us)


def count(database: Engine) -> int:
    with snapshot(database) as connection:
        return connection.scalar(select(func.count(usage_events.c.seq))) or 0


@pytest.fixture
def admitted(database: Engine) -> Engine:
    with transaction(database) as connection:
        add_tenant(connection)
    admit(database, "req_1")
    return database


def test_an_event_is_identified_by_what_it_states() -> None:
    assert event().id == "req_1/block/0"
    assert event().kind is EventKind.BLOCK
    assert bodies.state(TERMINAL, "acme", 0).id == "req_1/terminal/0"
    assert event(0, "a").body_sha256 != event(0, "b").body_sha256
    assert event(at_us=1).body_sha256 == event(at_us=2).body_sha256


def test_bodies_survive_the_log(admitted: Engine) -> None:
    with transaction(admitted) as connection:
        event_log.append(connection, [event(), bodies.state(TERMINAL, "acme", 5)])
    with snapshot(admitted) as connection:
        assert event_log.of_request(connection, "req_1") == [body(), TERMINAL]


def test_a_replay_is_a_no_op(admitted: Engine) -> None:
    for _ in range(2):
        with transaction(admitted) as connection:
            event_log.append(connection, [event(0), event(1)])
    with transaction(admitted) as connection:
        event_log.append(connection, [event(1, at_us=5), event(2), event(0)])
    assert count(admitted) == 3


def test_the_same_id_with_another_body_is_a_conflict(admitted: Engine) -> None:
    with transaction(admitted) as connection:
        event_log.append(connection, [event(0, "said")])
    with (
        pytest.raises(EventConflict, match="req_1/block/0"),
        transaction(admitted) as connection,
    ):
        event_log.append(connection, [event(1), event(0, "unsaid")])
    assert count(admitted) == 1


def test_a_conflict_within_one_batch_is_found(admitted: Engine) -> None:
    with pytest.raises(EventConflict), transaction(admitted) as connection:
        event_log.append(connection, [event(0, "said"), event(0, "unsaid")])


def test_no_events_are_no_work(admitted: Engine) -> None:
    with transaction(admitted) as connection:
        event_log.append(connection, [])
    assert count(admitted) == 0


def test_canonical_json_sorts_escapes_and_leaves_no_space() -> None:
    assert canonical_json.encode({"b": [1, None], "a": "é\0"}) == ('{"a":"é\\u0000","b":[1,null]}')


@pytest.mark.parametrize("value", [0.5, {"a": [1, 2.0]}, [{"b": float("nan")}]])
def test_canonical_json_refuses_floats(value: object) -> None:
    with pytest.raises(TypeError, match="float"):
        canonical_json.encode(value)


def test_a_cut_block_states_only_what_is_left_of_it() -> None:
    record = block(0, "a", "b", "c", logprob=-0.5, accepted=2, drafted=4)
    whole = bodies.block_body(
        step(0), msgspec.structs.replace(record, anchor=1, cached_tokens=2), Work(), VOCAB_SIZE
    )
    cut = bodies.cut(whole, 1, VOCAB_SIZE)
    assert (cut.token_ids, cut.pieces, cut.logprobs_unats) == ((0,), (b"a",), (-500_000,))
    assert (cut.accepted_tokens, cut.cached_tokens, cut.drafted_depth) == (1, 1, 1)
    assert (cut.drafted_nodes, cut.verified_nodes) == (4, 5), "what was computed stays computed"
    assert (cut.anchor, cut.withheld_tokens) == (None, 2)
    assert cut.information_ubits == 721_348
    assert bodies.cut(whole, 2, VOCAB_SIZE).anchor == 1
