"""A batch: what steps come to does not depend on how many of them are worked out at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metering_cases import (
    VOCAB_SIZE,
    Gate,
    Rig,
    add_tenant,
    admit,
    admitted_request,
    block,
    finish,
    recorder_rig,
    step,
)
from sqlalchemy import Connection, Engine, func, select

from engine.records import FinishReason, StepRecord
from metering import clock, event_log, queries
from metering.bodies import BlockBody
from metering.database import snapshot, transaction
from metering.energy import PendingStep
from metering.events import EndedBy, RequestStatus
from metering.protocols import Cover
from metering.recorder import endings
from metering.recorder.batch import Batch, RequestFault, Surroundings
from metering.recorder.counters import Counts, EpochCounts
from metering.recorder.live import LiveRequest, LiveRequests
from metering.request_meter import RequestMeter
from metering.review_rule import ReviewRule
from metering.semantic import Segmenter, Unit
from metering.tables import usage_events

NAMES = ("req_1", "req_2", "req_3")
WORDS = st.sampled_from(["One. ", "two", "\n", "好", "", b"\xe5\xa5", b"\xbd", "# h\n"])
LIVES = st.lists(
    st.lists(st.lists(WORDS, max_size=4), max_size=8), min_size=len(NAMES), max_size=len(NAMES)
)
LIMITS = st.lists(st.integers(0, 20), min_size=len(NAMES), max_size=len(NAMES))


class WorkedOut(NamedTuple):
    """All that batches made of some steps."""

    blocks: dict[str, list[BlockBody]]
    outputs: dict[str, tuple[str, int]]  # and the units in them
    effects: dict[str, list[tuple[str, int]]]  # of each block that is shown
    withheld: dict[str, Any]
    pending: list[PendingStep]
    counts: dict[str, EpochCounts]
    unknown: int
    paid_until_ns: dict[str, int]


def schedule(lives: Sequence[Sequence[Sequence[str | bytes]]]) -> list[StepRecord]:
    """Steps that run the requests side by side, each to its end; and one that nobody admitted."""
    steps = []
    for index in range(max(map(len, lives)) + 1):
        said = [
            block(index, *life[index], request_id=name)
            for name, life in zip(NAMES, lives, strict=True)
            if index < len(life)
        ]
        said.append(block(index, "?", request_id="req_unknown"))
        ends = [
            finish(name, FinishReason.LENGTH, blocks=len(life))
            for name, life in zip(NAMES, lives, strict=True)
            if index == len(life)
        ]
        steps.append(step(index, *said, finishes=ends, start_ns=10 * index, end_ns=10 * index + 9))
    return steps


def worked_out(
    steps: Sequence[StepRecord],
    sizes: Sequence[int],
    limits: Sequence[int],
    reaches: Sequence[int],
    shown: Collection[str] = NAMES,
) -> WorkedOut:
    """Batches of these sizes, one after the other, and what was left of the steps as the last."""
    live = LiveRequests()
    for name in NAMES:
        live.add(LiveRequest(admitted_request(name), RequestMeter(admitted_request(name), RULE)))
    gate = Gate(
        dict(zip(NAMES, limits, strict=True)),
        Cover.CREDIT,
        reaches={
            name: min(reach, limit)
            for name, reach, limit in zip(NAMES, reaches, limits, strict=True)
        },
    )
    around = Surroundings(
        live=live,
        gate=gate,
        is_shown=lambda name: name in shown,
        vocab_size=VOCAB_SIZE,
        energy_so_far=lambda _: None,
    )
    found = WorkedOut(
        {name: [] for name in NAMES}, {}, {name: [] for name in NAMES}, {}, [], {}, 0, {}
    )
    counts, left = Counts(), list(steps)
    for size in (*sizes, len(steps)):
        if not left:
            break
        batch = Batch(around, left[:size])
        del left[:size]
        batch.work_out(cast(Connection, None))
        found.pending.extend(batch.pending)
        counts = counts + batch.counts
        for name, draft in batch.drafts.items():
            found.blocks[name] += draft.blocks
            found.effects[name] += [(each.text, each.units_closed) for each in draft.effects]
            draft.live.keep(draft.meter, draft.blocks)
            paid = found.paid_until_ns
            paid[name] = max(paid.get(name, -1), draft.charged_until_ns)
            if draft.withheld is not None:
                live.withhold(draft.live, draft.withheld, 0)
                found.withheld.setdefault(name, draft.withheld)
            if draft.finish is not None:
                live.end(draft.live, endings.finished(draft.finish.reason), 0)
    for name in NAMES:
        ended = live.get(name)
        assert ended is not None
        end = ended.meter.terminal(RequestStatus.COMPLETED, FinishReason.LENGTH, EndedBy.TENANT)
        found.outputs[name] = (ended.meter.output, len(ended.meter.summary(end, 0).units))
    return found._replace(counts=counts.by_epoch, unknown=counts.unknown_records)


def without_ends(found: WorkedOut) -> WorkedOut:
    """Less what is known of an end only where the same batch says so.

    A last code point that is unfinished is shown with its block then, and later otherwise. Whoever
    ended in a batch before is withheld anew by the next, which is no cut.
    """
    closed: dict[str, list[tuple[str, int]]] = {
        name: [("", units) for _, units in effects] for name, effects in found.effects.items()
    }
    return found._replace(withheld={}, outputs={}, effects=closed)


RULE = ReviewRule()


@given(
    lives=LIVES,
    sizes=st.lists(st.integers(1, 5), max_size=6),
    limits=LIMITS,
    reaches=LIMITS,
)
def test_steps_come_to_the_same_however_many_are_worked_out_at_once(
    lives: list[list[list[str | bytes]]], sizes: list[int], limits: list[int], reaches: list[int]
) -> None:
    steps = schedule(lives)
    one_by_one = worked_out(steps, [1] * len(steps), limits, reaches)
    assert without_ends(worked_out(steps, sizes, limits, reaches)) == without_ends(one_by_one)
    for name, life, limit in zip(NAMES, lives, limits, strict=True):
        said = [token for words in life for token in words]
        stated = sum(len(body.token_ids) for body in one_by_one.blocks[name])
        assert stated == min(len(said), limit)


@given(
    lives=LIVES,
    sizes=st.lists(st.integers(1, 5), max_size=6),
    limits=LIMITS,
    reaches=LIMITS,
    shown=st.sets(st.sampled_from(NAMES)),
)
def test_a_request_comes_to_the_same_whether_or_not_its_blocks_are_shown(
    lives: list[list[list[str | bytes]]],
    sizes: list[int],
    limits: list[int],
    reaches: list[int],
    shown: set[str],
) -> None:
    steps = schedule(lives)
    all_shown = worked_out(steps, sizes, limits, reaches)
    found = worked_out(steps, sizes, limits, reaches, shown)
    assert found.effects == {
        name: effects if name in shown else [] for name, effects in all_shown.effects.items()
    }
    assert found._replace(effects={}) == all_shown._replace(effects={})


@pytest.fixture
def rig(database: Engine) -> Any:
    with recorder_rig(database) as made:
        yield made


def test_the_blocks_of_a_batch_are_one_event_of_each_request(rig: Rig) -> None:
    rig.track("req_1", "req_2")
    rig.recorder.on_steps([step(0, block(0, "a"), block(0, "x", request_id="req_2"))])
    rig.recorder.on_steps(
        [step(1, block(1, "b")), step(2, block(2, "c"), block(1, "y", request_id="req_2"))]
    )
    with snapshot(rig.database) as connection:
        ids = connection.scalars(select(usage_events.c.id).order_by(usage_events.c.seq)).all()
        facts = event_log.of_request(connection, "req_1")
    assert ids == ["req_1/block/0", "req_2/block/0", "req_1/block/1", "req_2/block/1"]
    assert [fact.pieces for fact in facts if isinstance(fact, BlockBody)] == [
        (b"a",),
        (b"b",),
        (b"c",),
    ]


@pytest.mark.parametrize("word", ["b", "other"])
def test_a_block_that_is_said_again_adds_nothing_and_must_be_the_same(rig: Rig, word: str) -> None:
    """Whether it was durable before, or is of the same batch."""
    rig.track("req_1")
    at_ns = clock.monotonic_ns()
    times = {"start_ns": at_ns, "end_ns": at_ns}
    rig.recorder.on_steps([step(0, block(0, "a"), **times), step(1, block(1, "b"), **times)])
    again = step(1, block(1, word), **times, epoch="engine-1")
    later = step(2, block(2, "c"), block(2, "c"), **times)
    rig.recorder._last_step = ("", -1)  # as if it had not been heard
    rig.recorder.on_steps([again, later])
    rig.recorder.on_steps([step(3, finishes=[finish(blocks=3)])])
    summary = rig.sink.wait_for("req_1")
    if word == "b":
        assert (summary.status, rig.sink.text()) == (RequestStatus.COMPLETED, "abc")
    else:
        assert (summary.status, rig.sink.text()) == (RequestStatus.FAILED, "ab")


def test_blocks_that_an_earlier_version_logged_one_by_one_are_read(database: Engine) -> None:
    """One block was one event, with nothing left out; its id was the one of a run of one."""
    old = (
        '{"accepted_tokens":1,"alternatives":[],"anchor":null,"block_index":0,'
        '"cached_prompt_tokens":0,"cached_tokens":0,"drafted_depth":2,"drafted_nodes":2,'
        '"end_ns":9,"engine_epoch":"e","entropies_unats":[500000],"forced":[],'
        '"information_ubits":747076,"logprobs_unats":[-258917],"pieces":["VGhlIA=="],'
        '"request_id":"req_1","start_ns":5,"step_index":0,"token_ids":[100],"verified_nodes":3,'
        '"withheld_tokens":0,"work":{"kv_read_tokens":300,"prefill_tokens":0,'
        '"recomputed_kv_tokens":0,"recomputed_tokens":0,"verified_nodes":3}}'
    )
    with transaction(database) as connection:
        add_tenant(connection)
    admit(database, "req_1")
    with transaction(database) as connection:
        connection.execute(
            usage_events.insert().values(
                tenant_id="acme",
                source="/dflash/engine",
                id="req_1/block/0",
                kind="block",
                request_id="req_1",
                index=0,
                body=old,
                body_sha256="00",
                event_time_us=1,
                ingested_at_us=1,
            )
        )
    with snapshot(database) as connection:
        [fact] = event_log.of_request(connection, "req_1")
        traced = queries.trace(connection, "req_1")
        runs = queries.step_runs(connection)
        assert connection.scalar(select(func.count(usage_events.c.seq))) == 1
    assert isinstance(fact, BlockBody)
    assert (fact.pieces, fact.work.kv_read_tokens) == ((b"The ",), 300)
    assert [each.work.verified_nodes for each in traced.blocks] == [3]
    assert [(run.steps, run.tokens) for run in runs] == [(1, 1)]


@pytest.mark.parametrize("shown", [(), NAMES])
def test_a_fold_that_fails_half_way_leaves_nothing_of_it_behind(
    monkeypatch: pytest.MonkeyPatch, shown: Sequence[str]
) -> None:
    live = LiveRequests()
    followed = LiveRequest(admitted_request(), RequestMeter(admitted_request(), RULE))
    live.add(followed)
    gate = Gate({"req_1": 100}, Cover.CREDIT, reaches={"req_1": 100})
    around = Surroundings(
        live=live,
        gate=gate,
        is_shown=lambda name: name in shown,
        vocab_size=VOCAB_SIZE,
        energy_so_far=lambda _: None,
    )
    before = followed.meter

    def broken(segmenter: Segmenter, data: bytes) -> list[Unit]:
        raise ZeroDivisionError

    batch = Batch(around, [step(0, block(0, "One. ")), step(1, block(1, "Two."))])
    monkeypatch.setattr(Segmenter, "feed", broken)
    with pytest.raises(RequestFault):
        batch.work_out(cast(Connection, None))
    batch.take_back()
    assert (before.blocks, before.output) != (0, "")  # the fold had begun
    assert (followed.meter.blocks, followed.meter.output_tokens, followed.meter.output) == (
        0,
        0,
        "",
    )
