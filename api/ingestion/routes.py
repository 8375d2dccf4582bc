"""`POST /events` takes CloudEvents; `/admin/metering-keys` says who may send them."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import MediaType, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from sqlalchemy import Engine as Database

from api import audit, metering_keys, projects
from api.auth import Principal, Scope, presented_key, requires
from api.error_reports import documented
from api.errors import (
    Forbidden,
    InvalidBody,
    InvalidParameter,
    NotFound,
    Unauthenticated,
)
from api.metering_keys import MeteringKey
from api.schemas import Name, PathId, TenantId, to_time, to_time_or_null
from metering import clock
from metering.database import snapshot, transaction
from metering.ingestion import envelopes, intake
from metering.ingestion.intake import Answer

EVENTS_MAX = 1000
SINGLE = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
_BATCH = msgspec.json.Decoder(list[msgspec.Raw])


class EventAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one event: accepted, duplicate, conflict or rejected, and why."""

    id: str | None
    result: str
    reason: str | None = None


class BatchAnswer(msgspec.Struct, frozen=True):
    """What became of every event, in their order; `counts` adds them up."""

    counts: dict[str, int]
    items: list[EventAnswer]


@post(
    "/events",
    summary="Report usage",
    tags=["metering"],
    status_code=200,
    responses=documented(InvalidBody, Unauthenticated),
    media_type=MediaType.JSON,
)
async def report_usage(
    request: Request[Any, Any, Any], database: NamedDependency[Database]
) -> Response[BatchAnswer]:
    """Take one CloudEvent, or up to 1,000 as `application/cloudevents-batch+json`.

    Each is answered for itself: one that is wrong keeps none of the others out, and sending them
    all again is safe. An accepted event is durable when the answer comes.
    """
    presented = presented_key(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    answers = await asyncio.to_thread(_take, database, presented, kind, body)
    counts = Counter(answer.result.value for answer in answers)
    items = [EventAnswer(answer.id, answer.result.value, answer.reason) for answer in answers]
    return Response(BatchAnswer(dict(counts), items))


def _take(database: Database, presented: str | None, kind: str, body: bytes) -> list[Answer]:
    with snapshot(database) as connection:
        key = metering_keys.identify(connection, presented)
        known = projects.known(connection, key.tenant_ids)
    now = clock.now_us()
    batch = [
        envelopes.read(
            raw, source=key.source, tenant_ids=key.tenant_ids, now_us=now, projects=known
        )
        for raw in _events(kind, body)
    ]
    return intake.take(database, key.id, batch)


def _events(kind: str, body: bytes) -> list[bytes]:
    if kind in {SINGLE, "application/json"}:
        return [body]
    if kind != BATCH:
        raise InvalidBody(f"send {SINGLE} or {BATCH}")
    try:
        found = _BATCH.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBody(f"this is no JSON array: {error}") from None
    if len(found) > EVENTS_MAX:
        raise InvalidBody(f"a batch has at most {EVENTS_MAX} events")
    return [bytes(raw) for raw in found]


class MeteringKeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key for reporting one source's usage of these tenants."""

    name: Name
    source: Annotated[str, Meta(max_length=100, examples=["vllm/eu-1"])]
    tenant_ids: Annotated[list[TenantId], Meta(min_length=1, max_length=1000)]


class MeteringKeyView(msgspec.Struct, frozen=True):
    """A metering key, without its secret."""

    id: str
    name: str
    source: str
    tenant_ids: list[str]
    last_four: str
    created_at: datetime
    revoked_at: datetime | None

    @classmethod
    def of(cls, key: MeteringKey) -> MeteringKeyView:
        """The wire's view of a key."""
        return cls(
            id=key.id,
            name=key.name,
            source=key.source,
            tenant_ids=sorted(key.tenant_ids),
            last_four=key.last_four,
            created_at=to_time(key.created_at_us),
            revoked_at=to_time_or_null(key.revoked_at_us),
        )


class IssuedMeteringKey(msgspec.Struct, frozen=True):
    """A new key with its secret, which is never shown again."""

    key: MeteringKeyView
    secret: str


class MeteringKeyList(msgspec.Struct, frozen=True):
    """Every metering key, oldest first."""

    items: list[MeteringKeyView]


@post(
    "/metering-keys",
    guards=[requires(Scope.ADMINISTER)],
    summary="Issue a metering key",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def create_metering_key(
    data: JSONBody[MeteringKeyRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
) -> IssuedMeteringKey:
    """Issue a key that reports usage of one source for some tenants. The secret is only here."""
    with transaction(database) as connection:
        key, secret = metering_keys.create(
            connection, name=data.name, source=data.source, tenant_ids=data.tenant_ids
        )
        audit.write(
            connection,
            actor=principal.key_id,
            action="metering_key.created",
            subject=key.id,
            source=key.source,
            tenant_ids=sorted(key.tenant_ids),
        )
    return IssuedMeteringKey(MeteringKeyView.of(key), secret)


@get(
    "/metering-keys",
    guards=[requires(Scope.ADMINISTER)],
    summary="List metering keys",
    responses=documented(Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def list_metering_keys(database: NamedDependency[Database]) -> MeteringKeyList:
    """Every metering key, revoked ones too."""
    with snapshot(database) as connection:
        return MeteringKeyList(
            [MeteringKeyView.of(key) for key in metering_keys.listing(connection)]
        )


@post(
    "/metering-keys/{key_id:str}/revoke",
    guards=[requires(Scope.ADMINISTER)],
    summary="Revoke a metering key",
    status_code=200,
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def revoke_metering_key(
    principal: NamedDependency[Principal], database: NamedDependency[Database], key_id: PathId
) -> MeteringKeyView:
    """End a key at once. Idempotent."""
    with transaction(database) as connection:
        was_dead = metering_keys.require(connection, key_id).revoked_at_us is not None
        key = metering_keys.revoke(connection, key_id)
        if not was_dead:
            audit.write(
                connection,
                actor=principal.key_id,
                action="metering_key.revoked",
                subject=key_id,
            )
    return MeteringKeyView.of(key)
