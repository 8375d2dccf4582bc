"""Where a tenant is told things: endpoints, their secrets, and what they want to hear of."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uuid_utils
from sqlalchemy import Connection, insert, select, update

from api.errors import Conflict, InvalidParameter, NotFound
from api.schemas import to_time
from api.webhook_tables import webhook_endpoints
from api.webhooks.addresses import check_url
from metering import clock

SECRET_BYTES = 32
ENDPOINTS_MAX = 20
OVERLAP_S_MAX = 7 * 86_400


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. `secrets` sign: the present one first, its predecessor while both hold."""

    id: str
    tenant_id: str
    url: str
    types: tuple[str, ...]  # empty: everything
    created_at_us: int
    disabled_at_us: int | None
    disabled_reason: str | None
    secrets: tuple[str, ...] = field(repr=False)

    def wants(self, kind: str) -> bool:
        """Whether it is told of notices of this type."""
        return self.disabled_at_us is None and (not self.types or kind in self.types)


def create(
    connection: Connection,
    tenant_id: str,
    url: str,
    types: Sequence[str] = (),
    *,
    allow_private: bool = False,
) -> Endpoint:
    """Add an endpoint with a secret of its own. Raises InvalidParameter or Conflict."""
    check_url(url, allow_private=allow_private)
    if len([each for each in listing(connection, tenant_id) if not each.disabled_at_us]) >= (
        ENDPOINTS_MAX
    ):
        raise Conflict(f"a tenant has at most {ENDPOINTS_MAX} endpoints")
    endpoint_id = f"ep_{uuid_utils.uuid7().hex}"
    connection.execute(
        insert(webhook_endpoints).values(
            id=endpoint_id,
            tenant_id=tenant_id,
            url=url,
            types=msgspec.json.encode(sorted(set(types))).decode(),
            secret=_mint(),
            created_at_us=clock.now_us(),
        )
    )
    return require(connection, tenant_id, endpoint_id)


def rotate(connection: Connection, tenant_id: str, endpoint_id: str, overlap_s: int) -> Endpoint:
    """Give an endpoint a new secret; the old one signs beside it for `overlap_s` longer.

    A secret that an earlier rotation left signing does so until its own time. Two sign at most, so
    meanwhile the one in between has no overlap to give. Raises NotFound, InvalidParameter for an
    overlap out of range, or Conflict for one while an earlier overlap lasts.
    """
    if not 0 <= overlap_s <= OVERLAP_S_MAX:
        raise InvalidParameter(f"overlap_s must be from 0 to {OVERLAP_S_MAX}", "overlap_s")
    before = _row(connection, tenant_id, endpoint_id, lock=True)
    now_us = clock.now_us()
    kept: dict[str, object] = {}
    if not _overlaps(before, now_us):
        kept = {"previous_secret": before.secret, "previous_until_us": now_us + overlap_s * 10**6}
    elif overlap_s:
        until = to_time(before.previous_until_us).isoformat()
        raise Conflict(f"an earlier secret signs until {until}: till then, rotate with overlap_s 0")
    connection.execute(
        update(webhook_endpoints)
        .where(webhook_endpoints.c.id == endpoint_id)
        .values(secret=_mint(), **kept)
    )
    return require(connection, tenant_id, endpoint_id)


def disable(connection: Connection, endpoint_id: str, reason: str) -> None:
    """Tell an endpoint nothing more; a second time changes nothing."""
    connection.execute(
        update(webhook_endpoints)
        .where(webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.disabled_at_us.is_(None))
        .values(disabled_at_us=clock.now_us(), disabled_reason=reason[:200])
    )


def listing(connection: Connection, tenant_id: str) -> list[Endpoint]:
    """A tenant's endpoints, oldest first, disabled ones too."""
    rows = connection.execute(
        select(webhook_endpoints)
        .where(webhook_endpoints.c.tenant_id == tenant_id)
        .order_by(webhook_endpoints.c.created_at_us, webhook_endpoints.c.id)
    )
    return [_endpoint(row) for row in rows]


def require(connection: Connection, tenant_id: str, endpoint_id: str) -> Endpoint:
    """A tenant's endpoint by its id. Raises NotFound."""
    return _endpoint(_row(connection, tenant_id, endpoint_id))


def _row(connection: Connection, tenant_id: str, endpoint_id: str, *, lock: bool = False) -> Any:
    query = select(webhook_endpoints).where(
        webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.tenant_id == tenant_id
    )
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFound(f"no endpoint {endpoint_id}")
    return row


def _overlaps(row: Any, now_us: int) -> bool:
    return row.previous_until_us is not None and now_us < row.previous_until_us


def _mint() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def _endpoint(row: Any) -> Endpoint:
    both = _overlaps(row, clock.now_us())
    return Endpoint(
        id=row.id,
        tenant_id=row.tenant_id,
        url=row.url,
        types=tuple(msgspec.json.decode(row.types)),
        created_at_us=row.created_at_us,
        disabled_at_us=row.disabled_at_us,
        disabled_reason=row.disabled_reason,
        secrets=(row.secret, row.previous_secret) if both else (row.secret,),
    )
