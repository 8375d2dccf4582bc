"""The pages as one router, to be mounted by the application: sign-in, tenant, operator, static."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litestar import Router
from litestar.datastructures import CacheControlHeader
from litestar.di import Provide
from litestar.static_files import create_static_files_router
from sqlalchemy import Engine

from billing.exports.downloads import ProjectNames
from billing.payments.provider import Provider
from billing.receipts import Signer
from dashboards import access, doors, failures
from dashboards.billing import exports, invoices, overview, receipts, statement
from dashboards.operator import (
    calibrations,
    economics,
    engine,
    reconciliation,
    reviewers,
    reviews,
    unrated,
)
from dashboards.protocols import AuditLog, EngineState, FindPrincipal, Host
from dashboards.rendering import PREFIX, STATIC
from dashboards.security import SecurityHeaders
from dashboards.sessions import checked_form, session_middleware
from metering.energy import Grid

STATIC_MAX_AGE_S = 30 * 86_400

HANDLERS = (
    *doors.HANDLERS,
    *overview.HANDLERS,
    *receipts.HANDLERS,
    *statement.HANDLERS,
    *invoices.HANDLERS,
    *exports.HANDLERS,
    *reviews.HANDLERS,
    *reviewers.HANDLERS,
    *calibrations.HANDLERS,
    *engine.HANDLERS,
    *economics.HANDLERS,
    *reconciliation.HANDLERS,
    *unrated.HANDLERS,
    failures.no_such_page,
)


def dashboard_router(
    *,
    database: Engine,
    authenticate: FindPrincipal,
    recall: FindPrincipal,
    audit: AuditLog,
    project_names: ProjectNames,
    signer: Signer,
    engines: Callable[[], Sequence[EngineState]],
    session_secret: bytes,
    provider: Provider | None = None,
    grid: Grid | None = None,
    secure_cookies: bool = False,
) -> Router:
    """Everything under `/dashboard`, self-contained: sessions, errors, headers and files too.

    `session_secret` must survive restarts and be the same in every process, or sessions end with
    them. `secure_cookies` belongs on wherever browsers reach the gateway over HTTPS.
    """
    host = Host(
        *(database, authenticate, recall, audit, project_names, signer),
        *(engines, provider, grid),
    )
    pages = Router(
        path="/",
        route_handlers=HANDLERS,
        middleware=[session_middleware(session_secret, path=PREFIX, secure=secure_cookies)],
        exception_handlers=failures.EXCEPTION_HANDLERS,
        dependencies={
            "host": Provide(lambda: host, sync_to_thread=False),
            "viewer": Provide(access.provide_viewer, sync_to_thread=True),
            "desk": Provide(access.provide_desk, sync_to_thread=True),
            "reviewer": Provide(access.provide_reviewer, sync_to_thread=False),
            "operator": Provide(access.provide_operator, sync_to_thread=False),
            "form": Provide(checked_form),
        },
        include_in_schema=False,
    )
    files = create_static_files_router(
        path="/static",
        directories=[STATIC],
        name="dashboard_static",
        cache_control=CacheControlHeader(public=True, max_age=STATIC_MAX_AGE_S, immutable=True),
    )
    return Router(path=PREFIX, route_handlers=[pages, files], middleware=[SecurityHeaders()])
