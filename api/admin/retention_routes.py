"""`/admin/tenants/{id}/retention` and `/erasures`: how long content is kept, and erasing it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from sqlalchemy import Engine as Database

from api.admin.records import record
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.schemas import Instant, PathId, TenantId, to_us_or_null
from billing import retention
from billing.retention import DAYS_MAX, Chosen
from metering.database import snapshot, transaction

REFUSALS = (Unauthenticated, Forbidden, NotFound)


class RetentionSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For how many days after an answer its content is kept; null is until it is erased."""

    content_days: Annotated[int, Meta(ge=0, le=DAYS_MAX)] | None


class ErasureRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to erase: one request, an end user's, what ended before a moment, or everything."""

    request_id: TenantId | None = None
    end_user: Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")] | None = (
        None
    )
    ended_before: Instant | None = None
    everything: bool = False


class ErasureView(msgspec.Struct, frozen=True):
    """Of how many requests the content was erased. Their receipts stay."""

    requests: int


@get(
    "/tenants/{tenant_id:str}/retention",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read how long content is kept",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def read_retention(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> RetentionSetting:
    """For how long a tenant's prompts and outputs are kept."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return RetentionSetting(retention.kept_days(connection, asked))


@put(
    "/tenants/{tenant_id:str}/retention",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Say how long content is kept",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def put_retention(
    data: JSONBody[RetentionSetting],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> RetentionSetting:
    """Erase content by itself after so many days. What waits for a reviewer waits until then."""
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        retention.keep(connection, asked, data.content_days)
        record(connection, principal, "retention.changed", asked, content_days=data.content_days)
    return data


@post(
    "/tenants/{tenant_id:str}/erasures",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Erase content",
    status_code=200,
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def erase_content(
    data: JSONBody[ErasureRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> ErasureView:
    """Erase prompts, outputs and token ids of ended requests; receipts and charges stay."""
    named = [data.request_id, data.end_user, data.ended_before]
    if data.everything == any(each is not None for each in named):
        raise InvalidParameter("say what to erase: a request, a user, a moment, or everything")
    chosen = Chosen(
        data.request_id,
        data.end_user,
        to_us_or_null(data.ended_before, "ended_before"),
    )
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        count = retention.erase(connection, asked, chosen)
        record(
            connection,
            principal,
            "content.erased",
            asked,
            subject=data.request_id,
            requests=count,
        )
    return ErasureView(count)


ROUTES = [read_retention, put_retention, erase_content]
