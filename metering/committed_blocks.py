"""Committed blocks, as a stream shows them: live from the recorder, or again from the log.

Both are made here from what the log states, so a replayed stream is the first one, byte for byte.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from metering import event_log, requests
from metering.bodies import BlockBody, TerminalBody
from metering.protocols import CommittedBlock
from metering.request_meter import BlockEffect, RequestMeter
from metering.review_rule import ReviewRule
from metering.tables import requests as requests_table


def committed(body: BlockBody, effect: BlockEffect) -> CommittedBlock:
    """A block as its body and its effect on the request's fold state it."""
    score = effect.score
    return CommittedBlock(
        request_id=body.request_id,
        block_index=body.block_index,
        token_ids=body.token_ids,
        text=effect.text,
        pieces=body.pieces,
        logprobs_unats=body.logprobs_unats,
        forced=body.forced,
        alternatives=body.alternatives,
        units_closed=effect.units_closed,
        geo_mean=None if score is None else score.geo_mean,
        joint_prob=None if score is None else score.joint_prob,
        accepted_tokens=body.accepted_tokens,
        drafted_depth=body.drafted_depth,
    )


def replay(connection: Connection, request_id: str) -> list[CommittedBlock]:
    """A request's committed blocks, in order; none once their detail is compacted.

    Raises NoResultFound for a request that was never admitted.
    """
    row = connection.execute(
        select(requests_table).where(requests_table.c.id == request_id)
    ).mappings()
    meter = RequestMeter(requests.from_row(row.one()), ReviewRule())
    blocks: list[tuple[BlockBody, BlockEffect]] = []
    for body in event_log.of_request(connection, request_id):
        if isinstance(body, BlockBody):
            blocks.append((body, meter.fold_block(body)))
        elif isinstance(body, TerminalBody) and body.replaced_tail and blocks:
            last, effect = blocks[-1]
            blocks[-1] = (last, effect._replace(text=effect.text + meter.replace_tail()))
    return [committed(body, effect) for body, effect in blocks]
