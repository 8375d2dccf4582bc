"""One request: as it stands, what it came to, and why it failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, select

from metering.bodies import TerminalBody
from metering.events import (
    EventKind,
    RequestStatus,
    RequestSummary,
)
from metering.prepared import Prepared
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


_ROW = Prepared(
    select(*(requests.c[name] for name in RequestRow.__struct_fields__)).where(
        requests.c.id == bindparam("request_id")
    )
)


def request(connection: Connection, tenant_id: str | None, request_id: str) -> RequestRow | None:
    """One request, or null when there is none of this tenant."""
    row = _ROW.row(connection, {"request_id": request_id})
    if row is None or tenant_id not in {None, row.tenant_id}:
        return None
    fields = row._asdict()
    fields["status"] = RequestStatus(row.status)
    for name in ("parameters", "prompt", "tags"):
        fields[name] = None if fields[name] is None else json.loads(fields[name])
    return RequestRow(**fields)


_BODY = Prepared(
    select(request_summaries.c.body).where(
        request_summaries.c.request_id == bindparam("request_id")
    )
)


def summary(connection: Connection, request_id: str) -> RequestSummary | None:
    """The summary of a final request; null while it isn't final."""
    body = _BODY.value(connection, {"request_id": request_id})
    return None if body is None else msgspec.json.decode(body, type=RequestSummary)


def failure(connection: Connection, request_id: str) -> str | None:
    """Why a final request failed, in our own words; null where nothing was said of it."""
    body = connection.scalar(
        select(usage_events.c.body).where(
            usage_events.c.request_id == request_id, usage_events.c.kind == EventKind.TERMINAL
        )
    )
    return None if body is None else msgspec.json.decode(body, type=TerminalBody).detail
