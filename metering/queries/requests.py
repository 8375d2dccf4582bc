"""Requests: one of them, a list of them, and the blocks of one."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, or_, select

from metering.bodies import BlockBody, TerminalBody
from metering.energy import shown_uj
from metering.events import (
    ConfidenceTier,
    EnergyClass,
    EventKind,
    RequestStatus,
    RequestSummary,
)
from metering.tables import request_summaries, requests, usage_events


class RequestRow(msgspec.Struct, frozen=True):
    """A request as admitted, and how it ended if it has. Content is null once erased."""

    id: str
    tenant_id: str
    key_id: str
    model: str
    route: str
    tariff_version_id: str
    status: RequestStatus
    finish_reason: str | None
    parameters: Mapping[str, Any]
    prompt: Any
    output: str | None
    input_tokens: int
    max_tokens: int
    max_cost_nano: int | None
    end_user: str | None
    tags: Mapping[str, str] | None
    test_mode: bool
    started_at_us: int
    ended_at_us: int | None
    project_id: str | None


class RequestPosition(msgspec.Struct, frozen=True):
    """Where a page of a request list ended; the next page begins behind it."""

    started_at_us: int
    id: str


class ListedRequest(msgspec.Struct, frozen=True):
    """A request in a list, without its content. Quantities are null until it is final."""

    id: str
    tenant_id: str
    model: str
    route: str
    status: RequestStatus
    finish_reason: str | None
    started_at_us: int
    ended_at_us: int | None
    input_tokens: int
    output_tokens: int | None
    complete_units: int | None
    fragment_units: int | None
    geo_mean: str | None
    tier: ConfidenceTier | None
    energy_class: EnergyClass | None
    shown_uj: int | None

    @property
    def position(self) -> RequestPosition:
        """Where this request stands in the list."""
        return RequestPosition(self.started_at_us, self.id)


class BlockRow(msgspec.Struct, frozen=True):
    """A committed block, as its event states it."""

    block_index: int
    token_ids: tuple[int, ...]
    pieces: tuple[bytes, ...]
    text: str  # the code points that became complete with this block
    logprobs_unats: tuple[int | None, ...]
    entropies_unats: tuple[int | None, ...]
    drafted_depth: int
    drafted_nodes: int
    verified_nodes: int
    accepted_tokens: int
    cached_tokens: int
    anchor: int | None
    withheld_tokens: int
    event_time_us: int


def request(connection: Connection, tenant_id: str | None, request_id: str) -> RequestRow | None:
    """One request, or null when there is none of this tenant."""
    query = select(requests).where(requests.c.id == request_id)
    if tenant_id is not None:
        query = query.where(requests.c.tenant_id == tenant_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    fields = {name: row[name] for name in RequestRow.__struct_fields__}
    fields["status"] = RequestStatus(row["status"])
    for name in ("parameters", "prompt", "tags"):
        fields[name] = None if row[name] is None else json.loads(row[name])
    return RequestRow(**fields)


def summary(connection: Connection, request_id: str) -> RequestSummary | None:
    """The summary of a final request; null while it isn't final."""
    body = connection.scalar(
        select(request_summaries.c.body).where(request_summaries.c.request_id == request_id)
    )
    return None if body is None else msgspec.json.decode(body, type=RequestSummary)


def failure(connection: Connection, request_id: str) -> str | None:
    """Why a final request failed, in our own words; null where nothing was said of it."""
    body = connection.scalar(
        select(usage_events.c.body).where(
            usage_events.c.request_id == request_id, usage_events.c.kind == EventKind.TERMINAL
        )
    )
    return None if body is None else msgspec.json.decode(body, type=TerminalBody).detail


def request_list(
    connection: Connection,
    tenant_id: str | None,
    *,
    limit: int,
    after: RequestPosition | None = None,
    status: RequestStatus | None = None,
) -> list[ListedRequest]:
    """Requests, newest first, at most `limit`; those behind `after` if it is given."""
    query = _listed()
    if tenant_id is not None:
        query = query.where(requests.c.tenant_id == tenant_id)
    if status is not None:
        query = query.where(requests.c.status == status.value)
    if after is not None:
        query = query.where(
            or_(
                requests.c.started_at_us < after.started_at_us,
                and_(requests.c.started_at_us == after.started_at_us, requests.c.id < after.id),
            )
        )
    query = query.order_by(requests.c.started_at_us.desc(), requests.c.id.desc()).limit(limit)
    return [
        ListedRequest(
            id=row.id,
            tenant_id=row.tenant_id,
            model=row.model,
            route=row.route,
            status=RequestStatus(row.status),
            finish_reason=row.finish_reason,
            started_at_us=row.started_at_us,
            ended_at_us=row.ended_at_us,
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            complete_units=row.complete_units,
            fragment_units=row.fragment_units,
            geo_mean=row.geo_mean,
            tier=None if row.tier is None else ConfidenceTier(row.tier),
            energy_class=None if row.energy_class is None else EnergyClass(row.energy_class),
            shown_uj=shown_uj(row.energy_uj),
        )
        for row in connection.execute(query)
    ]


def blocks(connection: Connection, request_id: str) -> list[BlockRow]:
    """The committed blocks of a request, in order; none once their detail is compacted."""
    rows = connection.execute(
        select(usage_events.c.body, usage_events.c.event_time_us)
        .where(usage_events.c.request_id == request_id)
        .where(usage_events.c.kind == EventKind.BLOCK.value)
        .order_by(usage_events.c.index)
    )
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = []
    for row in rows:
        body = msgspec.json.decode(row.body, type=BlockBody)
        found.append(
            BlockRow(
                block_index=body.block_index,
                token_ids=body.token_ids,
                pieces=body.pieces,
                text="".join(decoder.decode(piece) for piece in body.pieces),
                logprobs_unats=body.logprobs_unats,
                entropies_unats=body.entropies_unats,
                drafted_depth=body.drafted_depth,
                drafted_nodes=body.drafted_nodes,
                verified_nodes=body.verified_nodes,
                accepted_tokens=body.accepted_tokens,
                cached_tokens=body.cached_tokens,
                anchor=body.anchor,
                withheld_tokens=body.withheld_tokens,
                event_time_us=row.event_time_us,
            )
        )
    return found


def _listed() -> Select[Any]:
    return select(
        requests.c.id,
        requests.c.tenant_id,
        requests.c.model,
        requests.c.route,
        requests.c.status,
        requests.c.finish_reason,
        requests.c.started_at_us,
        requests.c.ended_at_us,
        requests.c.input_tokens,
        request_summaries.c.output_tokens,
        request_summaries.c.complete_units,
        request_summaries.c.fragment_units,
        request_summaries.c.geo_mean,
        request_summaries.c.tier,
        request_summaries.c.energy_class,
        request_summaries.c.energy_uj,
    ).select_from(
        requests.outerjoin(request_summaries, requests.c.id == request_summaries.c.request_id)
    )
