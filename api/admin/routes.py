"""`/admin`: everything that changes who may spend what. Every change leaves an audit line."""

from __future__ import annotations

from litestar import Router

from api.admin import (
    audit_routes,
    budget_routes,
    credit_routes,
    economics_routes,
    key_routes,
    reconciliation_routes,
    retention_routes,
    review_routes,
    spending_routes,
    tariff_routes,
    tenant_routes,
)
from api.bodies import StrictBody
from api.ingestion import routes as ingestion

admin_router = Router(
    "/admin",
    route_handlers=[
        tenant_routes.create_tenant,
        tenant_routes.list_tenants,
        tenant_routes.read_tenant,
        tenant_routes.change_tenant,
        tenant_routes.suspend_tenant,
        tenant_routes.resume_tenant,
        credit_routes.grant_credit,
        economics_routes.read_economics,
        economics_routes.compare_fleets,
        tariff_routes.assign_tariff,
        tariff_routes.override_tariff,
        tariff_routes.list_tariffs,
        tariff_routes.publish_tariff,
        key_routes.create_key,
        key_routes.list_keys,
        key_routes.read_key,
        key_routes.rotate_key,
        key_routes.revoke_key,
        *spending_routes.ROUTES,
        *budget_routes.ROUTES,
        *retention_routes.ROUTES,
        *reconciliation_routes.ROUTES,
        *review_routes.ROUTES,
        ingestion.create_metering_key,
        ingestion.list_metering_keys,
        ingestion.revoke_metering_key,
        audit_routes.read_audit_log,
    ],
    dto=StrictBody,
    return_dto=None,
    tags=["administration"],
)
