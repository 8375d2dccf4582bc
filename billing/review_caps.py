"""Whether a tenant lets reviews cost it anything, and what in a calendar month of its own time.

A cap counts fees of the month's items, less those that lapsed. An answer whose fee does not fit is
not reviewed at the tenant's cost, and the tenant is told once a month that this begins.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo

from sqlalchemy import Connection, bindparam, func, select, update

from billing.budget_windows import Period, Window, window_of
from billing.errors import InvalidAmount, UnknownTenant
from billing.money import format_nano
from billing.notices import NoticeType, announce
from billing.review_items import ReviewState
from billing.review_tables import review_caps
from billing.rows import insert_once
from billing.tables import review_items
from metering import clock
from metering.prepared import Prepared
from metering.tables import tenants

_OPTS_IN = Prepared(select(tenants.c.review_opt_in).where(tenants.c.id == bindparam("tenant_id")))


def opts_in(connection: Connection, tenant_id: str) -> bool:
    """Whether a tenant pays for reviews; raises UnknownTenant.

    What is charged by it is decided under the tenant's lock: consent may be withdrawn meanwhile.
    """
    found = _OPTS_IN.value(connection, {"tenant_id": tenant_id})
    if found is None:
        raise UnknownTenant(f"no tenant {tenant_id!r}")
    return bool(found)


def limit(connection: Connection, tenant_id: str, cap_nano: int | None) -> None:
    """Set what a tenant's reviews may cost in a month; null: whatever they do.

    Raises InvalidAmount.
    """
    if (cap_nano or 0) < 0:
        raise InvalidAmount("a cap is not below zero")
    row = {"tenant_id": tenant_id, "cap_nano": cap_nano, "changed_at_us": clock.now_us()}
    if not insert_once(connection, review_caps, row):
        connection.execute(
            update(review_caps).where(review_caps.c.tenant_id == tenant_id).values(**row)
        )


def cap(connection: Connection, tenant_id: str) -> int | None:
    """What a tenant's reviews may cost in a month, in nano; null: no cap."""
    return connection.scalar(
        select(review_caps.c.cap_nano).where(review_caps.c.tenant_id == tenant_id)
    )


def admits(connection: Connection, tenant_id: str, fee_nano: int, currency: str) -> bool:
    """Whether another fee fits this month, and a word to the tenant where it does not.

    The caller holds the tenant's lock, so that two fees can't both take what is left.
    """
    cap_nano = cap(connection, tenant_id)
    if cap_nano is None:
        return True
    window = _month(connection, tenant_id)
    spent_nano = spent(connection, tenant_id, window)
    if spent_nano + fee_nano <= cap_nano:
        return True
    announce(
        connection,
        tenant_id,
        NoticeType.REVIEW_CAP_REACHED,
        f"{window.start_us}/{cap_nano}",
        {
            "cap": format_nano(cap_nano),
            "spent": format_nano(spent_nano),
            "currency": currency,
            "window_start_us": window.start_us,
            "window_end_us": window.end_us,
        },
    )
    return False


def spent(connection: Connection, tenant_id: str, window: Window) -> int:
    """What the tenant's reviews queued in a window cost it, in nano, less what lapsed."""
    total = connection.scalar(
        select(func.coalesce(func.sum(review_items.c.fee_nano), 0)).where(
            review_items.c.tenant_id == tenant_id,
            review_items.c.paid_by == "tenant",
            review_items.c.state != ReviewState.LAPSED,
            review_items.c.queued_at_us >= window.start_us,
            review_items.c.queued_at_us < window.end_us,
        )
    )
    return int(total or 0)


def _month(connection: Connection, tenant_id: str) -> Window:
    zone = connection.scalar(select(tenants.c.time_zone).where(tenants.c.id == tenant_id))
    return window_of(Period.MONTH, clock.now_us(), ZoneInfo(zone or "UTC"))
