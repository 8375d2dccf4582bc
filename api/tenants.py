"""Tenants: who is billed, in which currency, and on what terms."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from functools import cache
from zoneinfo import available_timezones

import uuid_utils
from sqlalchemy import Connection, Row, and_, insert, or_, select, update

from api.errors import InvalidParameter, NotFound
from billing.currencies import CODES
from billing.ledger.accounts import lock_tenant
from billing.review_items import Delivery
from metering import clock
from metering.tables import tenants

NAME_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant as it stands. `review_opt_in` is its consent to pay for human reviews."""

    id: str
    name: str
    currency: str
    time_zone: str
    review_opt_in: bool
    review_delivery: str  # "now", or "held" until the verdict: answers that go to review
    suspended: bool
    created_at_us: int
    review_redaction: bool = True  # reviewers see texts with what points at a person hidden


def create(
    connection: Connection,
    *,
    name: str,
    currency: str = "USD",
    time_zone: str = "UTC",
    review_opt_in: bool = False,
    review_delivery: str = "now",
    review_redaction: bool = True,
) -> Tenant:
    """Add a tenant, without credit or keys. Raises InvalidParameter."""
    check_name(name)
    _check_currency(currency)
    _check_time_zone(time_zone)
    _check_delivery(review_delivery)
    tenant = Tenant(
        id=f"ten_{uuid_utils.uuid7().hex}",
        name=name,
        currency=currency,
        time_zone=time_zone,
        review_opt_in=review_opt_in,
        review_delivery=review_delivery,
        suspended=False,
        created_at_us=clock.now_us(),
        review_redaction=review_redaction,
    )
    connection.execute(
        insert(tenants).values(
            id=tenant.id,
            name=tenant.name,
            currency=tenant.currency,
            time_zone=tenant.time_zone,
            review_opt_in=tenant.review_opt_in,
            review_delivery=tenant.review_delivery,
            suspended=tenant.suspended,
            created_at_us=tenant.created_at_us,
            review_redaction=tenant.review_redaction,
        )
    )
    return tenant


def change(
    connection: Connection,
    tenant_id: str,
    *,
    name: str | None = None,
    time_zone: str | None = None,
    review_opt_in: bool | None = None,
    review_delivery: str | None = None,
    review_redaction: bool | None = None,
) -> Tenant:
    """Change settings; null leaves one as it is. The currency can't change: its ledger is in it.

    Waits for whatever is being admitted or settled on the former ones. Raises NotFound or
    InvalidParameter.
    """
    _lock(connection, tenant_id)
    if name is not None:
        check_name(name)
    if time_zone is not None:
        _check_time_zone(time_zone)
    if review_delivery is not None:
        _check_delivery(review_delivery)
    settings = {
        "name": name,
        "time_zone": time_zone,
        "review_opt_in": review_opt_in,
        "review_delivery": review_delivery,
        "review_redaction": review_redaction,
    }
    changed = {key: value for key, value in settings.items() if value is not None}
    if changed:
        connection.execute(update(tenants).where(tenants.c.id == tenant_id).values(**changed))
    return require(connection, tenant_id)


def suspend(connection: Connection, tenant_id: str, *, suspended: bool = True) -> Tenant:
    """Stop a tenant from spending, or let it again. What runs already runs to its end.

    Waits for whatever is being admitted: afterwards nothing is.
    """
    _lock(connection, tenant_id)
    connection.execute(update(tenants).where(tenants.c.id == tenant_id).values(suspended=suspended))
    return require(connection, tenant_id)


def find(connection: Connection, tenant_id: str) -> Tenant | None:
    """A tenant by its id."""
    row = connection.execute(select(tenants).where(tenants.c.id == tenant_id)).one_or_none()
    return None if row is None else _from_row(row)


def require(connection: Connection, tenant_id: str) -> Tenant:
    """A tenant by its id. Raises NotFound."""
    tenant = find(connection, tenant_id)
    if tenant is None:
        raise NotFound(f"no tenant {tenant_id}")
    return tenant


def listing(
    connection: Connection, *, limit: int, after: tuple[int, str] | None = None
) -> list[Tenant]:
    """Tenants, newest first. `after` is (created_at_us, id)."""
    query = select(tenants).order_by(tenants.c.created_at_us.desc(), tenants.c.id.desc())
    if after is not None:
        created_at_us, tenant_id = after
        query = query.where(
            or_(
                tenants.c.created_at_us < created_at_us,
                and_(tenants.c.created_at_us == created_at_us, tenants.c.id < tenant_id),
            )
        )
    return [_from_row(row) for row in connection.execute(query.limit(limit))]


def check_name(name: str) -> None:
    """Raise InvalidParameter for a name that is empty, too long or not printable."""
    if not (0 < len(name.strip()) <= len(name) <= NAME_CHARS_MAX and name.isprintable()):
        raise InvalidParameter(
            f"a name has 1 to {NAME_CHARS_MAX} printable characters, not only spaces", "name"
        )


def _lock(connection: Connection, tenant_id: str) -> None:
    """Lock a tenant before it changes. Raises NotFound."""
    lock_tenant(connection, tenant_id, require(connection, tenant_id).currency)


def _from_row(row: Row[tuple[object, ...]]) -> Tenant:
    return Tenant(**row._mapping)


def _check_currency(currency: str) -> None:
    if currency not in CODES:
        raise InvalidParameter("a currency is an ISO 4217 code such as USD", "currency")


def _check_time_zone(time_zone: str) -> None:
    if time_zone not in _time_zones():
        raise InvalidParameter("a time zone is an IANA name such as Europe/Berlin", "time_zone")


@cache
def _time_zones() -> Set[str]:
    # Those two are whatever a machine was set to, or was not.
    return available_timezones() - {"localtime", "Factory"}


def _check_delivery(review_delivery: str) -> None:
    if review_delivery not in set(Delivery):
        allowed = ", ".join(Delivery)
        raise InvalidParameter(f"review_delivery is one of {allowed}", "review_delivery")
