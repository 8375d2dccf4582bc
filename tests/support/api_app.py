"""The gateway's routers on a small application of their own: no engine, no recorder."""

from __future__ import annotations

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
    """Mount `handlers` the way the gateway does; `dependencies` are values, by name."""
    values = {"database": database, **dependencies}
    return Litestar(
        route_handlers=handlers,
        dependencies={
            "principal": Provide(provide_principal, sync_to_thread=False),
            **{
                name: Provide(_constant(value), sync_to_thread=False)
                for name, value in values.items()
            },
        },
        before_request=refuse_unknown,
        exception_handlers=exception_handlers,
        state=State({"database": database}),
        request_max_body_size=BODY_BYTES_MAX,
        logging_config=None,
    )


def make_client(
    database: Engine, *handlers: ControllerRouterHandler, **dependencies: Any
) -> TestClient[Litestar]:
    """A client of such an application; errors reach it as responses, as they would over HTTP."""
    app = make_app(database, *handlers, **dependencies)
    return TestClient(app, raise_server_exceptions=False)


def _constant(value: Any) -> Any:
    def provide() -> Any:
        return value

    return provide
