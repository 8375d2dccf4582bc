"""`GET /usage`, and the router of everything a tenant reads about itself."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from litestar import Router, get
from litestar.di import NamedDependency
from sqlalchemy import Engine as Database

from api import tenants
from api.auth import Principal, Scope, requires, visible_tenant
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.schemas import TenantQuery, to_time
from api.usage import (
    billing_routes,
    estimate_routes,
    ranges,
    spending_routes,
    tariff_routes,
)
from api.usage.ranges import BucketQuery, EndQuery, StartQuery
from api.usage.schemas import CarbonView, UsageBucketView, UsageView
from metering import queries
from metering.database import snapshot
from metering.energy import Grid
from metering.queries import Bucket


@get(
    "/usage",
    guards=[requires(Scope.READ_USAGE)],
    summary="Read usage over time",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def read_usage(
    *,
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    grid: NamedDependency[Grid | None],
    tenant_id: TenantQuery = None,
    start: StartQuery = None,
    end: EndQuery = None,
    bucket: BucketQuery = Bucket.DAY,
) -> UsageView:
    """Tokens, units, bits and joules of finished requests."""
    asked = ranges.read(start, end, bucket)
    seen = visible_tenant(principal, tenant_id)
    with snapshot(database) as connection:
        zone = "UTC" if seen is None else tenants.require(connection, seen).time_zone
        found = queries.usage(
            connection, seen, asked.start_us, asked.end_us, bucket, zone=ZoneInfo(zone)
        )
    return UsageView(
        tenant_id=seen,
        start=to_time(asked.start_us),
        end=to_time(asked.end_us),
        bucket=bucket,
        time_zone=zone,
        carbon=None if grid is None else CarbonView(f"{grid.gco2e_per_kwh:f}"),
        items=[UsageBucketView.of(each, grid) for each in found],
    )


usage_router = Router(
    "/",
    route_handlers=[
        read_usage,
        billing_routes.read_balance,
        billing_routes.read_charges,
        billing_routes.list_receipts,
        billing_routes.read_receipt,
        billing_routes.receipt_keys,
        estimate_routes.estimate,
        spending_routes.read_spending,
        tariff_routes.read_tariff,
        tariff_routes.preview_tariff,
    ],
    tags=["usage and cost"],
)
