"""How a submitted request is answered: waited for, streamed, or replayed from what is stored.

A first answer and its replay are made by the same functions from the same rows, so that they
cannot differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import Receive
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from api.errors import (
    Forbidden,
    IdempotencyMismatch,
    InvalidBody,
    InvalidIdempotencyKey,
    NotSettled,
    RateLimited,
    RequestInFlight,
    TenantSuspended,
    Unauthenticated,
)
from api.gateway import Gateway, Live
from api.inference.event_stream import disconnected
from api.inference.generations import read
from api.inference.schemas import GenerationView
from billing.errors import BudgetExhausted, CostCeilingTooLow, InsufficientCredit, PaymentOverdue
from engine.errors import (
    EngineOverloaded,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
)
from metering.committed_blocks import replay
from metering.database import snapshot
from metering.events import FINAL_STATUSES, RequestStatus, RequestSummary
from metering.protocols import CommittedBlock

# What a request for an answer may be refused with, whatever its shape.
REFUSALS = (
    *(InvalidRequest, PromptTooLong, InvalidBody, InvalidIdempotencyKey, Unauthenticated),
    *(InsufficientCredit, PaymentOverdue, BudgetExhausted, CostCeilingTooLow),
    *(Forbidden, TenantSuspended, ModelNotFound, RequestInFlight, IdempotencyMismatch),
    *(RateLimited, EngineOverloaded, EngineUnavailable, NotSettled),
)
HTTP_CLIENT_CLOSED_REQUEST = 499  # never seen: the client is gone; it is for the access log


async def wait_settled(receive: Receive, gateway: Gateway, live: Live) -> bool:
    """Wait for the end of an order; false when its client went away first. Raises NotSettled.

    The departing client's order is cancelled, and pays for what was committed before. Where the
    server wants to end first, the order is stopped at our expense.
    """
    settled = asyncio.create_task(live.stream.settled())
    departure = asyncio.create_task(disconnected(receive))
    try:
        try:
            await asyncio.wait({settled, departure}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await gateway.stop(live)
            await asyncio.wait({settled})
        if settled.done():
            settled.result()
        return settled.done()
    finally:
        settled.cancel()
        departure.cancel()
        if not settled.done() or settled.cancelled():
            await gateway.cancel(live)


def read_final(database: Database, request_id: str) -> GenerationView:
    """A request that is over; raises RequestInFlight for one that is not.

    Raises EngineUnavailable for one that the engine refused, which was never begun.
    """
    with snapshot(database) as connection:
        view = read(connection, None, request_id)
    if view.status not in FINAL_STATUSES:
        raise RequestInFlight("the request with this Idempotency-Key is still running")
    if view.status == RequestStatus.REFUSED:
        raise EngineUnavailable("the engine refused this request; send it again")
    return view


async def told(
    gateway: Gateway, live: Live
) -> AsyncIterator[CommittedBlock | GenerationView | None]:
    """What a stream tells of an order: blocks as they come, and each choice's view at its end.

    Null is that nothing came for a while. Blocks of an answer that may have to wait for a reviewer
    are kept back until it is known that it need not. Raises NotSettled.
    """
    kept: dict[str, list[CommittedBlock]] = {}
    async for item in live.stream.items(gateway.settings.keepalive_s):
        if isinstance(item, CommittedBlock) and live.held:
            kept.setdefault(item.request_id, []).append(item)
        elif isinstance(item, RequestSummary):
            view = await asyncio.to_thread(read_final, gateway.database, item.request_id)
            if view.output is not None:
                for block in kept.pop(item.request_id, []):
                    yield block
            yield view
        else:
            yield item


def stored_blocks(connection: Connection, view: GenerationView) -> list[CommittedBlock]:
    """The blocks of an answer that is over, as a stream tells them; none while it is withheld."""
    return [] if view.output is None else replay(connection, view.id)


def headers(request_id: str, *, replayed: bool = False) -> dict[str, str]:
    """What every answer says of itself."""
    return {"request-id": request_id} | ({"idempotent-replayed": "true"} if replayed else {})


def json_reply(content: object, extra: Mapping[str, str], status: int = 200) -> ASGIResponse:
    """A JSON response."""
    return ASGIResponse(
        body=msgspec.json.encode(content),
        status_code=status,
        media_type="application/json",
        headers=extra.items(),
    )


def client_closed() -> ASGIResponse:
    """The answer to a client that no longer listens."""
    return ASGIResponse(status_code=HTTP_CLIENT_CLOSED_REQUEST)
