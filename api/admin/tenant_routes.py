"""`/admin/tenants`: who is billed, and on what terms."""

from __future__ import annotations

from litestar import get, patch, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Engine as Database

from api import audit, cursors, tenants
from api.admin.schemas import TenantChange, TenantPage, TenantRequest, TenantView
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.schemas import CursorQuery, LimitQuery, PathId
from billing import catalogue
from metering import clock
from metering.database import snapshot, transaction

LISTING = "tenants"


@post(
    "/tenants",
    guards=[requires(Scope.ADMINISTER)],
    summary="Create a tenant",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def create_tenant(
    data: JSONBody[TenantRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
) -> TenantView:
    """Create a tenant without credit or keys, and put it on a tariff if one is named."""
    with transaction(database) as connection:
        tenant = tenants.create(
            connection,
            name=data.name,
            currency=data.currency,
            time_zone=data.time_zone,
            review_opt_in=data.review_opt_in,
            review_delivery=data.review_delivery,
            review_redaction=data.review_redaction,
        )
        if data.tariff is not None:
            catalogue.assign(connection, tenant.id, data.tariff, clock.now_us())
        audit.write(
            connection,
            actor=principal.key_id,
            action="tenant.created",
            subject=tenant.id,
            tenant_id=tenant.id,
            name=tenant.name,
            currency=tenant.currency,
            tariff=data.tariff,
        )
    return TenantView.of(tenant)


@get(
    "/tenants",
    guards=[requires(Scope.ADMINISTER)],
    summary="List tenants",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def list_tenants(
    database: NamedDependency[Database],
    cursor: CursorQuery = None,
    limit: LimitQuery = cursors.PAGE_DEFAULT,
) -> TenantPage:
    """Tenants, newest first."""
    after = cursors.decode(LISTING, cursor)
    with snapshot(database) as connection:
        found = tenants.listing(connection, limit=limit + 1, after=after)
    shown, following = cursors.page(LISTING, found, limit, lambda row: (row.created_at_us, row.id))
    return TenantPage([TenantView.of(tenant) for tenant in shown], following)


@get(
    "/tenants/{tenant_id:str}",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read a tenant",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def read_tenant(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> TenantView:
    """A tenant's settings: one's own, or any for the operator."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return TenantView.of(tenants.require(connection, asked))


@patch(
    "/tenants/{tenant_id:str}",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Change a tenant's settings",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def change_tenant(
    data: JSONBody[TenantChange],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> TenantView:
    """Change what is given. An owner changes its own tenant; opting in to reviews is its consent
    to their fee.
    """
    changes = {
        "name": data.name,
        "time_zone": data.time_zone,
        "review_opt_in": data.review_opt_in,
        "review_delivery": data.review_delivery,
        "review_redaction": data.review_redaction,
    }
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        tenant = tenants.change(
            connection,
            asked,
            name=data.name,
            time_zone=data.time_zone,
            review_opt_in=data.review_opt_in,
            review_delivery=data.review_delivery,
            review_redaction=data.review_redaction,
        )
        audit.write(
            connection,
            actor=principal.key_id,
            action="tenant.changed",
            subject=asked,
            tenant_id=asked,
            **{name: value for name, value in changes.items() if value is not None},
        )
    return TenantView.of(tenant)


@post(
    "/tenants/{tenant_id:str}/suspend",
    guards=[requires(Scope.ADMINISTER)],
    summary="Stop a tenant from spending",
    status_code=200,
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def suspend_tenant(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> TenantView:
    """From now on nothing is admitted; what runs already runs to its end. Idempotent."""
    return _set_suspended(principal, database, tenant_id, suspended=True)


@post(
    "/tenants/{tenant_id:str}/resume",
    guards=[requires(Scope.ADMINISTER)],
    summary="Let a suspended tenant spend again",
    status_code=200,
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def resume_tenant(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> TenantView:
    """Undo a suspension. Idempotent."""
    return _set_suspended(principal, database, tenant_id, suspended=False)


def _set_suspended(
    principal: Principal, database: Database, tenant_id: str, *, suspended: bool
) -> TenantView:
    with transaction(database) as connection:
        tenant = tenants.suspend(connection, tenant_id, suspended=suspended)
        audit.write(
            connection,
            actor=principal.key_id,
            action="tenant.suspended" if suspended else "tenant.resumed",
            subject=tenant_id,
            tenant_id=tenant_id,
        )
    return TenantView.of(tenant)
