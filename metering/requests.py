"""The row of a request: from admission to its one final state.

Nothing here commits; every function works within its caller's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, RowMapping, bindparam, insert, select, update

from engine.records import EngineInfo
from metering import rollups
from metering.errors import UnknownRequest
from metering.events import FINAL_STATUSES, RequestStatus, RequestSummary
from metering.prepared import Prepared
from metering.tables import request_summaries, requests

CHOICES_MAX = 16  # answers to one order: as many requests of one prompt
LIVE_STATUSES = (RequestStatus.ADMITTED, RequestStatus.RUNNING)


class AdmittedRequest(msgspec.Struct, frozen=True):
    """What admission decided about a request, before the engine hears of it."""

    id: str
    tenant_id: str
    key_id: str
    model: str
    route: str  # "generate", "chat.completions", "completions"
    tariff_version_id: str  # pinned: later tariffs never touch this request
    parameters: Mapping[str, Any]  # as validated
    prompt: Any  # what was sent: JSON-able
    input_tokens: int  # 0 for a second and later choice: the first has the prompt
    max_tokens: int
    max_cost_nano: int | None
    end_user: str | None
    tags: Mapping[str, str] | None
    test_mode: bool
    started_at_us: int
    project_id: str | None = None
    engine: EngineInfo | None = None  # what was to run it: a later engine says nothing of it
    content_salt: str | None = None  # before all its content that is hashed; null: unsalted
    replica: str | None = None  # the name of the engine, where it has one
    calibration: str | None = None  # pinned: its scores are read by this version, or by none


def choice_ids(request_id: str, choices: int) -> tuple[str, ...]:
    """The ids of an order's requests, one for each choice; the first is the order's own."""
    return (request_id, *(f"{request_id}.{choice}" for choice in range(1, choices)))


_ADMIT = Prepared(insert(requests))


def admit(connection: Connection, admitted: AdmittedRequest) -> None:
    """Insert the request as admitted."""
    _ADMIT.run(
        connection,
        {
            "id": admitted.id,
            "tenant_id": admitted.tenant_id,
            "key_id": admitted.key_id,
            "model": admitted.model,
            "route": admitted.route,
            "tariff_version_id": admitted.tariff_version_id,
            "status": RequestStatus.ADMITTED.value,
            "parameters": _to_json(admitted.parameters),
            "prompt": _to_json(admitted.prompt),
            "input_tokens": admitted.input_tokens,
            "max_tokens": admitted.max_tokens,
            "max_cost_nano": admitted.max_cost_nano,
            "end_user": admitted.end_user,
            "tags": None if admitted.tags is None else _to_json(admitted.tags),
            "test_mode": admitted.test_mode,
            "started_at_us": admitted.started_at_us,
            "project_id": admitted.project_id,
            "content_salt": admitted.content_salt,
            "replica": admitted.replica,
            "calibration": admitted.calibration,
            "engine": None
            if admitted.engine is None
            else msgspec.json.encode(admitted.engine).decode(),
        },
    )


_MARK_RUNNING = Prepared(
    update(requests)
    .where(requests.c.id.in_(bindparam("request_ids", expanding=True)))
    .where(requests.c.status == RequestStatus.ADMITTED.value)
    .values(status=RequestStatus.RUNNING.value),
    listed="request_ids",
)


def mark_running(connection: Connection, request_ids: Iterable[str]) -> None:
    """Move admitted requests on to running; others are left as they are."""
    _MARK_RUNNING.run(connection, {"request_ids": list(request_ids)})


_FINALISE = Prepared(
    update(requests)
    .where(requests.c.id == bindparam("request_id"))
    .where(requests.c.status.in_([status.value for status in LIVE_STATUSES]))
)
_SUMMARISE = Prepared(insert(request_summaries))


def finalise(connection: Connection, summary: RequestSummary, output: str) -> None:
    """Make the request final and store its summary; both happen once in a request's life.

    Raises UnknownRequest when the request is final already.
    """
    if summary.status not in FINAL_STATUSES:
        raise ValueError(f"{summary.status} is not a final status")
    changed = _FINALISE.run(
        connection,
        {
            "request_id": summary.request_id,
            "status": summary.status.value,
            "finish_reason": summary.finish_reason,
            "output": output,
            "ended_at_us": summary.ended_at_us,
        },
    )
    if changed != 1:
        raise UnknownRequest(summary.request_id)
    _SUMMARISE.run(connection, summary_row(summary))
    rollups.mark(connection, summary.tenant_id, summary.ended_at_us)


def live(connection: Connection) -> list[AdmittedRequest]:
    """Every request that is not final, oldest first: what a restart has to bring to an end."""
    rows = connection.execute(
        select(requests)
        .where(requests.c.status.in_([status.value for status in LIVE_STATUSES]))
        .order_by(requests.c.started_at_us, requests.c.id)
    )
    return [from_row(row) for row in rows.mappings()]


def from_row(row: RowMapping) -> AdmittedRequest:
    """Rebuild what admission decided from the request's row."""
    return AdmittedRequest(
        id=row["id"],
        tenant_id=row["tenant_id"],
        key_id=row["key_id"],
        model=row["model"],
        route=row["route"],
        tariff_version_id=row["tariff_version_id"],
        parameters=json.loads(row["parameters"]),
        prompt=None if row["prompt"] is None else json.loads(row["prompt"]),
        input_tokens=row["input_tokens"],
        max_tokens=row["max_tokens"],
        max_cost_nano=row["max_cost_nano"],
        end_user=row["end_user"],
        tags=None if row["tags"] is None else json.loads(row["tags"]),
        test_mode=row["test_mode"],
        started_at_us=row["started_at_us"],
        project_id=row["project_id"],
        content_salt=row["content_salt"],
        replica=row["replica"],
        calibration=row["calibration"],
        engine=None
        if row["engine"] is None
        else msgspec.json.decode(row["engine"], type=EngineInfo),
    )


def summary_row(summary: RequestSummary) -> dict[str, Any]:
    """The row of `request_summaries`: what is added up and looked for, and the whole of it."""
    complete = sum(unit.state == "complete" for unit in summary.units)
    score = summary.confidence
    return {
        "request_id": summary.request_id,
        "tenant_id": summary.tenant_id,
        "status": summary.status.value,
        "input_tokens": summary.input_tokens,
        "output_tokens": summary.output_tokens,
        "blocks": summary.blocks,
        "complete_units": complete,
        "fragment_units": len(summary.units) - complete,
        "tier": None if score is None else score.tier.value,
        "geo_mean": None if score is None else score.geo_mean,
        "information_ubits": summary.information_ubits,
        "energy_class": summary.energy.energy_class.value,
        "energy_uj": summary.energy.energy_uj,
        "accepted_tokens": summary.drafting.accepted_tokens,
        "drafted_depth": summary.drafting.drafted_depth,
        "ended_at_us": summary.ended_at_us,
        "body": msgspec.json.encode(summary).decode(),
    }


def _to_json(value: Any) -> str:
    # Escaped, because PostgreSQL refuses a raw NUL in text and a prompt may hold one.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
