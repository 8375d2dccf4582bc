"""`/webhooks`: a tenant's endpoints, and what was delivered to them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Router, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import Meta
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from api import audit, cursors
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.bodies import StrictBody
from api.error_reports import documented
from api.errors import (
    Conflict,
    Forbidden,
    InvalidCursor,
    InvalidParameter,
    NotFound,
    Unauthenticated,
)
from api.schemas import CursorQuery, LimitQuery, PathId, TenantQuery, to_time, to_time_or_null
from api.webhooks import deliveries, endpoints
from api.webhooks.deliveries import Delivery
from api.webhooks.endpoints import OVERLAP_S_MAX, Endpoint
from billing.notices import NoticeType
from metering.database import snapshot, transaction

REFUSALS = (InvalidParameter, Unauthenticated, Forbidden, NotFound)
LISTING = "deliveries"


class EndpointRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to be told, and of what: no `types` is everything."""

    url: Annotated[str, Meta(max_length=2000, examples=["https://example.com/hooks"])]
    types: Annotated[list[NoticeType], Meta(max_length=50)] = []


class RotationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old secret signs beside the new one."""

    overlap_s: Annotated[int, Meta(ge=0, le=OVERLAP_S_MAX)] = 86_400


class EndpointView(msgspec.Struct, frozen=True):
    """An endpoint, without its secret."""

    id: str
    url: str
    types: list[str]
    created_at: datetime
    disabled_at: datetime | None
    disabled_reason: str | None

    @classmethod
    def of(cls, endpoint: Endpoint) -> EndpointView:
        """The wire's view of an endpoint."""
        return cls(
            id=endpoint.id,
            url=endpoint.url,
            types=list(endpoint.types),
            created_at=to_time(endpoint.created_at_us),
            disabled_at=to_time_or_null(endpoint.disabled_at_us),
            disabled_reason=endpoint.disabled_reason,
        )


class IssuedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint with its new secret, to verify deliveries with; it is not shown again."""

    endpoint: EndpointView
    secret: str


class EndpointList(msgspec.Struct, frozen=True):
    """A tenant's endpoints, oldest first."""

    items: list[EndpointView]


class DeliveryView(msgspec.Struct, frozen=True):
    """A delivery: `waiting` for its next attempt, `delivered`, or `failed` for good."""

    id: int
    webhook_id: str
    type: str
    endpoint_id: str
    state: str
    attempts: int
    next_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    delivered_at: datetime | None

    @classmethod
    def of(cls, found: Delivery) -> DeliveryView:
        """The wire's view of a delivery."""
        return cls(
            id=found.seq,
            webhook_id=found.notice_id,
            type=found.type,
            endpoint_id=found.endpoint_id,
            state=found.state,
            attempts=found.attempts,
            next_attempt_at=to_time(found.next_at_us) if found.state == "waiting" else None,
            last_status=found.last_status,
            last_error=found.last_error,
            delivered_at=to_time_or_null(found.delivered_at_us),
        )


class DeliveryPage(msgspec.Struct, frozen=True):
    """Deliveries, newest first; `next_cursor` is null on the last page."""

    items: list[DeliveryView]
    next_cursor: str | None


@post(
    "/endpoints",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Add a webhook endpoint",
    responses=documented(Conflict, *REFUSALS),
    sync_to_thread=True,
)
def create_endpoint(
    data: JSONBody[EndpointRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    webhooks_allow_private: NamedDependency[bool],
    tenant_id: TenantQuery = None,
) -> IssuedEndpoint:
    """Add an endpoint. Its secret is in this answer and in no other."""
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        endpoint = endpoints.create(
            connection, asked, data.url, data.types, allow_private=webhooks_allow_private
        )
        _audit(connection, principal, "webhook.created", endpoint, url=endpoint.url)
    return IssuedEndpoint(EndpointView.of(endpoint), endpoint.secrets[0])


@get(
    "/endpoints",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="List webhook endpoints",
    responses=documented(*REFUSALS),
    sync_to_thread=True,
)
def list_endpoints(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
) -> EndpointList:
    """A tenant's endpoints, disabled ones too."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return EndpointList(
            [EndpointView.of(each) for each in endpoints.listing(connection, asked)]
        )


@post(
    "/endpoints/{endpoint_id:str}/rotate",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Replace an endpoint's secret",
    status_code=200,
    responses=documented(Conflict, *REFUSALS),
    sync_to_thread=True,
)
def rotate_secret(
    data: JSONBody[RotationRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    endpoint_id: PathId,
    tenant_id: TenantQuery = None,
) -> IssuedEndpoint:
    """Sign with a new secret from now on, and with the old one beside it for `overlap_s`.

    What an earlier rotation left signing does so until its own time; meanwhile `overlap_s` is 0.
    """
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        endpoint = endpoints.rotate(connection, asked, endpoint_id, data.overlap_s)
        _audit(connection, principal, "webhook.rotated", endpoint, overlap_s=data.overlap_s)
    return IssuedEndpoint(EndpointView.of(endpoint), endpoint.secrets[0])


@delete(
    "/endpoints/{endpoint_id:str}",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Disable an endpoint",
    status_code=204,
    responses=documented(*REFUSALS),
    sync_to_thread=True,
)
def disable_endpoint(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    endpoint_id: PathId,
    tenant_id: TenantQuery = None,
) -> None:
    """Tell an endpoint nothing more. What was delivered stays listed."""
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        endpoint = endpoints.require(connection, asked, endpoint_id)
        endpoints.disable(connection, endpoint_id, "disabled by its tenant")
        if endpoint.disabled_at_us is None:
            _audit(connection, principal, "webhook.disabled", endpoint)


@get(
    "/deliveries",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="List deliveries",
    responses=documented(InvalidCursor, *REFUSALS),
    sync_to_thread=True,
)
def list_deliveries(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = cursors.PAGE_DEFAULT,
) -> DeliveryPage:
    """What was, or is to be, delivered; newest first."""
    before = cursors.decode_number(LISTING, cursor)
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        found = deliveries.listing(connection, asked, limit=limit + 1, before=before)
    shown, following = cursors.page(LISTING, found, limit, lambda row: row.seq)
    return DeliveryPage([DeliveryView.of(each) for each in shown], following)


@post(
    "/deliveries/{delivery_id:int}/replay",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Deliver again",
    status_code=200,
    responses=documented(*REFUSALS),
    sync_to_thread=True,
)
def replay_delivery(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    delivery_id: FromPath[int],
    tenant_id: TenantQuery = None,
) -> DeliveryView:
    """Send a delivery again under the same id, whatever became of it."""
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return DeliveryView.of(deliveries.replay(connection, asked, delivery_id))


def _audit(
    connection: Connection, principal: Principal, action: str, endpoint: Endpoint, **detail: Any
) -> None:
    audit.write(
        connection,
        actor=principal.key_id,
        action=action,
        subject=endpoint.id,
        tenant_id=endpoint.tenant_id,
        **detail,
    )


webhooks_router = Router(
    "/webhooks",
    route_handlers=[
        create_endpoint,
        list_endpoints,
        rotate_secret,
        disable_endpoint,
        list_deliveries,
        replay_delivery,
    ],
    dto=StrictBody,
    return_dto=None,
    tags=["webhooks"],
)
