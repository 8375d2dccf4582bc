"""`/admin/tenants/{id}/review-cap`: what a tenant lets human reviews cost."""

from __future__ import annotations

import msgspec
from litestar import get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Engine as Database

from api.admin.records import record
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.schemas import Amount, PathId
from billing import review_caps
from billing.errors import InvalidAmount
from billing.money import format_nano, parse_nano
from metering.database import snapshot, transaction

REFUSALS = (Unauthenticated, Forbidden, NotFound)


class ReviewCap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What reviews may cost in a calendar month of the tenant's time; null is no cap.

    An answer whose fee would pass it is not sent to review at the tenant's cost.
    """

    cap: Amount | None


@get(
    "/tenants/{tenant_id:str}/review-cap",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read what reviews may cost",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def read_cap(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> ReviewCap:
    """What a tenant's reviews may cost in a month."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        cap_nano = review_caps.cap(connection, asked)
        return ReviewCap(None if cap_nano is None else format_nano(cap_nano))


@put(
    "/tenants/{tenant_id:str}/review-cap",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Say what reviews may cost",
    responses=documented(InvalidAmount, *REFUSALS),
    sync_to_thread=True,
)
def put_cap(
    data: JSONBody[ReviewCap],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> ReviewCap:
    """Limit what a tenant's reviews cost, from the next answer on."""
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        review_caps.limit(connection, asked, None if data.cap is None else parse_nano(data.cap))
        record(connection, principal, "review_cap.changed", asked, cap=data.cap)
    return data


ROUTES = (read_cap, put_cap)
