"""The one place that wires things: routes, dependencies, errors and the gateway's life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from litestar import Litestar, get
from litestar.datastructures import State
from litestar.di import Provide
from litestar.response import Redirect
from sqlalchemy import Engine as Database

from api import audit, keys, projects
from api.admin.routes import admin_router
from api.arrival import ArrivalDeadline
from api.auth import provide_principal
from api.error_reports import exception_handlers
from api.exports.routes import exports_router
from api.gateway import Gateway
from api.health import health, ready
from api.inference import openai_routes, routes
from api.inference.audits import AuditDesk
from api.inference.orders import ServedModel
from api.ingestion import routes as ingestion_routes
from api.invoices.routes import invoice_desk_router, invoices_router
from api.metrics import metrics
from api.payments.cashier import Cashier
from api.payments.routes import payment_desk_router, stripe_webhook, top_ups_router
from api.query_parameters import refuse_unknown
from api.reference import problems_router
from api.replicas import Replicas
from api.review.routes import review_router
from api.session_secret import session_secret
from api.settings import Settings
from api.usage.routes import usage_router
from api.webhooks.routes import webhooks_router
from billing.signing import Signer
from dashboards.api_reference import described
from dashboards.pages import dashboard_router
from dashboards.rendering import PREFIX
from metering.energy import Grid


@get("/", include_in_schema=False, sync_to_thread=False)
def first_page() -> Redirect:
    """Whoever follows the bare address with a browser is shown the pages."""
    return Redirect(PREFIX)


def create_app(settings: Settings, started: Gateway | None = None) -> Litestar:
    """Build the application around a started gateway, or one that starts with it.

    Either way the gateway closes with the application.
    """
    gateway = started or Gateway(settings)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        if started is None:
            await asyncio.to_thread(gateway.start)
        try:
            yield
        finally:
            await asyncio.to_thread(gateway.close)

    def provide_gateway() -> Gateway:
        return gateway

    def provide_database() -> Database:
        return gateway.database

    def provide_replicas() -> Replicas:
        return gateway.replicas

    def provide_signer() -> Signer:
        return gateway.signer

    def provide_cashier() -> Cashier:
        return gateway.cashier

    audit_desk = AuditDesk(settings)

    def provide_audits() -> AuditDesk:
        return audit_desk

    def provide_served() -> ServedModel:
        return gateway.served

    grid = settings.energy_settings().grid

    def provide_grid() -> Grid | None:
        return grid

    def provide_webhooks_allow_private() -> bool:
        return settings.webhooks_allow_private

    return Litestar(
        route_handlers=[
            first_page,
            routes.generate,
            routes.generation,
            routes.generation_trace,
            routes.audit_generation,
            openai_routes.chat_completions,
            openai_routes.completions,
            openai_routes.models,
            openai_routes.model,
            ingestion_routes.report_usage,
            usage_router,
            invoices_router,
            exports_router,
            invoice_desk_router,
            top_ups_router,
            payment_desk_router,
            stripe_webhook,
            review_router,
            webhooks_router,
            admin_router,
            problems_router,
            health,
            ready,
            metrics,
            dashboard_router(
                database=gateway.database,
                authenticate=keys.authenticate,
                recall=keys.principal_of,
                audit=audit.write,
                project_names=projects.names,
                signer=gateway.signer,
                engines=gateway.engine_states,
                grid=grid,
                session_secret=session_secret(settings.home / "keys" / "session.secret"),
                provider=gateway.cashier.provider,
                secure_cookies=settings.secure_cookies,
            ),
        ],
        state=State({"database": gateway.database}),
        dependencies={
            "gateway": Provide(provide_gateway, sync_to_thread=False),
            "database": Provide(provide_database, sync_to_thread=False),
            "replicas": Provide(provide_replicas, sync_to_thread=False),
            "served": Provide(provide_served, sync_to_thread=False),
            "audits": Provide(provide_audits, sync_to_thread=False),
            "signer": Provide(provide_signer, sync_to_thread=False),
            "cashier": Provide(provide_cashier, sync_to_thread=False),
            "grid": Provide(provide_grid, sync_to_thread=False),
            "webhooks_allow_private": Provide(provide_webhooks_allow_private, sync_to_thread=False),
            "principal": Provide(provide_principal, sync_to_thread=True),
        },
        before_request=refuse_unknown,
        middleware=[ArrivalDeadline(settings.body_wait_s)],
        exception_handlers=exception_handlers,
        lifespan=[lifespan],
        request_max_body_size=settings.body_bytes_max,
        logging_config=None,  # `api.logs` has configured it
        openapi_config=described("DFlash Gateway", "1"),
    )
