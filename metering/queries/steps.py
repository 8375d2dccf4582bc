"""How long steps took, and how many requests they served: runs that blocks are the record of."""

from __future__ import annotations

from collections import defaultdict
from statistics import median_low

import msgspec
from sqlalchemy import Connection, select

from metering.bodies import SOURCE
from metering.events import EventKind
from metering.tables import usage_events

RUN_NS = 60 * 10**9


class StepRun(msgspec.Struct, frozen=True):
    """Steps of one engine process that served the same number of requests in the same minute.

    A step serves those that it emitted a block for; prompts that it computed beside them lengthen
    it, which is why a run states its median.
    """

    engine_epoch: str
    concurrency: int
    steps: int
    tokens: int
    step_ns: int  # of the median step
    busy_ns: int  # of all


class _Block(msgspec.Struct, frozen=True):
    """What of a block's event tells of its step."""

    engine_epoch: str
    step_index: int
    start_ns: int
    end_ns: int
    token_ids: list[int]


class _Step(msgspec.Struct):
    start_ns: int
    end_ns: int
    requests: int = 0
    tokens: int = 0


def step_runs(connection: Connection, *, events_max: int = 20_000) -> list[StepRun]:
    """The latest blocks on record as runs, by engine process and concurrency; reads no more of
    them than that. Empty where no block is kept.
    """
    events = usage_events.c
    rows = connection.execute(
        select(events.body)
        .where(events.kind == EventKind.BLOCK.value, events.source == SOURCE)
        .order_by(events.seq.desc())
        .limit(events_max)
    )
    steps: dict[tuple[str, int], _Step] = {}
    count = 0
    for (body,) in rows:
        block = msgspec.json.decode(body, type=_Block)
        key = (block.engine_epoch, block.step_index)
        step = steps.setdefault(key, _Step(block.start_ns, block.end_ns))
        step.requests += 1
        step.tokens += len(block.token_ids)
        count += 1
    if count == events_max:
        steps.pop(key)  # the limit may have cut through the oldest step
    runs: defaultdict[tuple[str, int, int], list[_Step]] = defaultdict(list)
    for (epoch, _), step in steps.items():
        runs[epoch, step.requests, step.start_ns // RUN_NS].append(step)
    return [
        StepRun(
            engine_epoch=epoch,
            concurrency=concurrency,
            steps=len(each),
            tokens=sum(step.tokens for step in each),
            step_ns=median_low(step.end_ns - step.start_ns for step in each),
            busy_ns=sum(step.end_ns - step.start_ns for step in each),
        )
        for (epoch, concurrency, _), each in sorted(runs.items())
    ]
