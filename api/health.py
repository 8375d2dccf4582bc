"""`GET /health` (the process answers) and `GET /ready` (it can serve)."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from api.gateway import Gateway
from metering.database import snapshot

HTTP_SERVICE_UNAVAILABLE = 503


class Health(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True):
    """What serving needs, part by part."""

    ready: bool
    engine: bool
    database: bool
    model: str


@get("/health", tags=["operations"], summary="Liveness", sync_to_thread=False)
def health() -> Health:
    """Answer at all."""
    return Health()


@get("/ready", tags=["operations"], summary="Readiness", sync_to_thread=True)
def ready(gateway: NamedDependency[Gateway]) -> Response[Readiness]:
    """200 when an engine runs and the database answers, else 503 saying which doesn't."""
    engine = any(state.stats for state in gateway.engine_states())
    try:
        with snapshot(gateway.database) as connection:
            connection.execute(text("SELECT 1"))
        database = True
    except SQLAlchemyError:
        database = False
    state = Readiness(engine and database, engine, database, gateway.served.name)
    return Response(state, status_code=200 if state.ready else HTTP_SERVICE_UNAVAILABLE)
