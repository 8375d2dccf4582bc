"""How a request was answered, step by step, as its stored blocks tell it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from sqlalchemy import Connection, select

from engine.records import Work
from metering import bodies
from metering.bodies import BlockBody, EnergyBody
from metering.events import FINAL_STATUSES, EventKind, RequestStatus
from metering.tables import requests, usage_events


class BlockEnergy(StrEnum):
    """Whether the joules of a block's steps are known, and in its request's figure."""

    PROVISIONAL = "provisional"  # a later change point of the meter will settle them
    SETTLED = "settled"
    UNAVAILABLE = "unavailable"  # nobody will ever know, or not before the receipt was signed


class TraceToken(msgspec.Struct, frozen=True):
    """How sure the raw verifier was where it drew a token."""

    logprob_unats: int | None  # micronats; null: not finite
    entropy_unats: int | None  # of the distribution that it was drawn from
    forced: bool  # a grammar left no other


class TraceBlock(msgspec.Struct, frozen=True):
    """The step that emitted one block, and what it did for this request."""

    index: int
    ended_us: int  # since admission
    step_us: int  # how long the step took, with all that shared it
    work: Work
    drafted_nodes: int  # candidates proposed
    drafted_depth: int  # tokens ahead, on the best path
    accepted_tokens: int  # drafted tokens that the verifier drew itself
    cached_tokens: int  # of those accepted, from the shared draft cache
    anchor: int | None  # index of the accepted token at which the verifier was surest
    withheld_tokens: int  # emitted behind these, and not covered by the hold
    energy: BlockEnergy
    tokens: tuple[TraceToken, ...]


class RequestTrace(msgspec.Struct, frozen=True):
    """The blocks of a request in order; none once their detail was compacted."""

    cached_prompt_tokens: int  # of the prompt, found computed
    blocks: tuple[TraceBlock, ...]


def trace(connection: Connection, request_id: str) -> RequestTrace:
    """Read how a request went; one that nobody admitted has no blocks. Changes nothing."""
    events = usage_events.c
    rows = connection.execute(
        select(
            events.kind,
            events.body,
            events.event_time_us,
            requests.c.started_at_us,
            requests.c.status,
        )
        .join(requests, requests.c.id == events.request_id)
        .where(events.request_id == request_id)
        .order_by(events.kind, events.index)
    ).all()
    settled = [
        msgspec.json.decode(row.body, type=EnergyBody)
        for row in rows
        if row.kind == EventKind.ENERGY
    ]
    runs = [
        (bodies.read_blocks(row.body), row.event_time_us - row.started_at_us)
        for row in rows
        if row.kind == EventKind.BLOCK
    ]
    blocks, cached = [], 0
    last = runs[-1][0][-1].block_index if runs else -1
    for run, after_us in runs:
        for body in run:
            cached += body.cached_prompt_tokens
            ended_us = after_us - (run[-1].end_ns - body.end_ns) // 1000  # the event is of its last
            energy = _energy(body.block_index, last, settled, RequestStatus(rows[0].status))
            blocks.append(_block(body, ended_us, energy))
    return RequestTrace(cached, tuple(blocks))


def _energy(
    index: int, last: int, settled: Sequence[EnergyBody], status: RequestStatus
) -> BlockEnergy:
    """By the events of energy, each of which says how far it reaches.

    A part of a request's energy is no figure of it: once it has ended, all of its blocks are
    settled or none.
    """
    if any(event.energy_uj is None for event in settled):
        return BlockEnergy.UNAVAILABLE
    is_final = status in FINAL_STATUSES
    if any(event.through_block >= (last if is_final else index) for event in settled):
        return BlockEnergy.SETTLED
    return BlockEnergy.UNAVAILABLE if is_final else BlockEnergy.PROVISIONAL


def _block(body: BlockBody, ended_us: int, energy: BlockEnergy) -> TraceBlock:
    return TraceBlock(
        index=body.block_index,
        ended_us=ended_us,
        step_us=(body.end_ns - body.start_ns) // 1000,
        work=body.work,
        drafted_nodes=body.drafted_nodes,
        drafted_depth=body.drafted_depth,
        accepted_tokens=body.accepted_tokens,
        cached_tokens=body.cached_tokens,
        anchor=body.anchor,
        withheld_tokens=body.withheld_tokens,
        energy=energy,
        tokens=tuple(
            TraceToken(logprob, entropy, index in body.forced)
            for index, (logprob, entropy) in enumerate(
                zip(body.logprobs_unats, body.entropies_unats, strict=True)
            )
        ),
    )
