"""How long steps took, and how many requests they served: runs that blocks are the record of."""

from __future__ import annotations

from collections import defaultdict
from statistics import median_low

import msgspec
from sqlalchemy import Connection, select

from metering import bodies
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


class _Step(msgspec.Struct):
    start_ns: int
    end_ns: int
    requests: int = 0
    tokens: int = 0


def step_runs(connection: Connection, *, events_max: int = 5_000) -> list[StepRun]:
    """The latest blocks on record as runs, by engine process and concurrency; reads no more of
    their events than that. Empty where no block is kept.
    """
    events = usage_events.c
    rows = connection.execute(
        select(events.ingested_at_us, events.body)
        .where(events.kind == EventKind.BLOCK.value, events.source == SOURCE)
        .order_by(events.seq.desc())
        .limit(events_max)
    ).all()
    # The limit may have cut through what was committed with the oldest of them.
    oldest = rows[-1].ingested_at_us if len(rows) == events_max else None
    steps: dict[tuple[str, int], _Step] = {}
    for ingested_at_us, body in rows:
        if ingested_at_us == oldest:
            continue
        for block in bodies.read_blocks(body):
            key = (block.engine_epoch, block.step_index)
            step = steps.setdefault(key, _Step(block.start_ns, block.end_ns))
            step.requests += 1
            step.tokens += len(block.token_ids)
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
