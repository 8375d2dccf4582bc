"""The gateway's routers on a small application of their own: no engine, no recorder."""

from __future__ import annotations

from functools import cache
from typing import Any

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.testing import TestClient
from litestar.types import ControllerRouterHandler
from sqlalchemy import Engine

from api.auth import provide_principal
from api.error_reports import exception_handlers
from api.query_parameters import refuse_unknown

BODY_BYTES_MAX = 1 << 16


def make_app(database: Engine, *handlers: ControllerRouterHandler, **dependencies: Any) -> Litestar:
    """Mount `handlers` the way the gateway does; `dependencies` are values, by name.

    Once for the same handlers and names, since that takes longer than most tests: the application
    is given the values of whoever asked for it last.
    """
    app, values = _mounted(handlers, ("database", *dependencies))
    values |= {"database": database, **dependencies}
    app.state["database"] = database
    return app


@cache
def _mounted(
    handlers: tuple[ControllerRouterHandler, ...], names: tuple[str, ...]
) -> tuple[Litestar, dict[str, Any]]:
    values: dict[str, Any] = {}
    app = Litestar(
        route_handlers=handlers,
        dependencies={
            "principal": Provide(provide_principal, sync_to_thread=False),
            **{name: Provide(_of(values, name), sync_to_thread=False) for name in names},
        },
        before_request=refuse_unknown,
        exception_handlers=exception_handlers,
        state=State(),
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
    )
    return app, values


def make_client(
    database: Engine, *handlers: ControllerRouterHandler, **dependencies: Any
) -> TestClient[Litestar]:
    """A client of such an application; errors reach it as responses, as they would over HTTP."""
    app = make_app(database, *handlers, **dependencies)
    return TestClient(app, raise_server_exceptions=False)


def _of(values: dict[str, Any], name: str) -> Any:
    def provide() -> Any:
        return values[name]

    return provide
