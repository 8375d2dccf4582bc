"""`POST /generate`, and of `/generations/{id}` the answer, its trace and its audit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, JSONBody
from litestar.types import ASGIApp
from sqlalchemy import Engine as Database

from api.auth import Principal, Scope, requires
from api.bodies import StrictBody
from api.error_reports import documented, report
from api.errors import AuditBusy, Forbidden, InvalidParameter, NotFound, NotSettled, Unauthenticated
from api.gateway import Gateway, Live
from api.inference import order_reader, replies, traces
from api.inference.audits import AuditDesk
from api.inference.event_stream import KEEPALIVE, EventStream, sse
from api.inference.generations import block_view, read
from api.inference.idempotency import IdempotencyKey
from api.inference.schemas import GenerateRequest, GenerationView, TraceView
from api.schemas import PathId
from billing import receipt_audit
from billing.errors import CannotAudit
from billing.receipt_audit import Audit
from billing.request_evidence import of_request
from metering.database import snapshot
from metering.protocols import CommittedBlock

encode = msgspec.json.encode


@post(
    "/generate",
    status_code=200,
    summary="Generate an answer and its receipt",
    guards=[requires(Scope.GENERATE)],
    tags=["inference"],
    dto=StrictBody,
    return_dto=None,
    responses={
        200: ResponseSpec(
            GenerationView,
            description="The answer and its signed receipt. With `stream`, server-sent events: "
            "one `block` for each committed block, then one `receipt` holding this same object, or "
            "an `error` holding a problem where it can't be settled yet.",
        ),
        **documented(*replies.REFUSALS),
    },
)
async def generate(
    request: Request[Any, Any, Any],
    data: JSONBody[GenerateRequest],
    gateway: NamedDependency[Gateway],
    principal: NamedDependency[Principal],
    idempotency_key: Annotated[str | None, HeaderParameter(name="Idempotency-Key")] = None,
) -> ASGIApp:
    """Generate within credit. A client that disconnects pays for the blocks committed before."""
    served = gateway.served
    order = await served.turns.read(principal.tenant_id, order_reader.read, served, data)
    key = IdempotencyKey.of(idempotency_key, await request.body())
    submitted = await gateway.submit(principal, order, key, shows_blocks=bool(data.stream))
    request_id = submitted.request_id
    live = submitted if isinstance(submitted, Live) else None
    reply_headers = replies.headers(request_id, replayed=live is None)
    if data.stream and live is not None:
        return EventStream(
            _live_events(gateway, live, logprobs=order.top_logprobs is not None),
            lambda: gateway.cancel(live),
            lambda: gateway.stop(live),
            reply_headers,
        )
    if live is not None and not await replies.wait_settled(request.receive, gateway, live):
        return replies.client_closed()
    view = await asyncio.to_thread(replies.read_final, gateway.database, request_id)
    if data.stream:
        blocks = await asyncio.to_thread(_stored, gateway.database, view)
        events = _stored_events(blocks, view, logprobs=order.top_logprobs is not None)
        return EventStream(events, _nothing, _nothing, reply_headers)
    return replies.json_reply(view, reply_headers)


@get(
    "/generations/{generation_id:str}",
    summary="Read a generation",
    guards=[requires(Scope.READ_CONTENT)],
    tags=["inference"],
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def generation(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    generation_id: PathId,
) -> GenerationView:
    """The generation with its receipt and adjustments. Reading never bills."""
    with snapshot(database) as connection:
        return read(connection, principal.tenant_id, generation_id)


@get(
    "/generations/{generation_id:str}/trace",
    summary="Read how an answer was generated",
    guards=[requires(Scope.READ_CONTENT)],
    tags=["inference"],
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def generation_trace(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    generation_id: PathId,
) -> TraceView:
    """Step by step: what was prefilled, drafted, verified and accepted, and how sure the model was.

    A request that runs has the steps that are committed.
    """
    with snapshot(database) as connection:
        return traces.read(connection, principal.tenant_id, generation_id)


@post(
    "/generations/{generation_id:str}/audit",
    status_code=200,
    summary="Audit a receipt by generating its answer again",
    guards=[requires(Scope.READ_CONTENT)],
    tags=["inference"],
    responses=documented(
        InvalidParameter, Unauthenticated, Forbidden, NotFound, CannotAudit, AuditBusy
    ),
)
async def audit_generation(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    audits: NamedDependency[AuditDesk],
    generation_id: PathId,
) -> Audit:
    """Every difference between the receipt and a replay from the stored prompt. Never billed."""
    owner = await asyncio.to_thread(_auditable, database, principal.tenant_id, generation_id)
    return await audits.audit(owner, generation_id)


def _auditable(database: Database, tenant_id: str | None, request_id: str) -> str:
    """Whose request it is; raises NotFound across tenants, CannotAudit if it can't be repeated."""
    with snapshot(database) as connection:
        evidence = of_request(connection, request_id)
    if evidence is None or tenant_id not in {None, evidence.request.tenant_id}:
        raise NotFound(f"no generation {request_id}")
    receipt_audit.stated(evidence)
    return str(evidence.request.tenant_id)


async def _live_events(gateway: Gateway, live: Live, *, logprobs: bool) -> AsyncIterator[bytes]:
    try:
        async for item in replies.told(gateway, live):
            if item is None:
                yield KEEPALIVE
            elif isinstance(item, CommittedBlock):
                yield sse("block", encode(block_view(item, logprobs=logprobs)))
            else:
                yield sse("receipt", encode(item))
    except NotSettled as error:
        yield sse("error", encode(report(error).as_problem()))


async def _stored_events(
    blocks: list[CommittedBlock], view: GenerationView, *, logprobs: bool
) -> AsyncIterator[bytes]:
    for block in blocks:
        yield sse("block", encode(block_view(block, logprobs=logprobs)))
    yield sse("receipt", encode(view))


def _stored(database: Database, view: GenerationView) -> list[CommittedBlock]:
    with snapshot(database) as connection:
        return replies.stored_blocks(connection, view)


async def _nothing() -> None:
    """A replay that is cut short costs nobody anything."""
