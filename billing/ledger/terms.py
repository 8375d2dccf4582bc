"""On what terms a tenant spends: prepaid, or postpaid up to a limit; and when it is warned."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select, update

from billing.credit_tables import credit_terms
from billing.errors import InvalidAmount, UnknownTenant
from billing.rows import insert_once
from metering import clock
from metering.prepared import Prepared
from metering.tables import tenants


@dataclass(frozen=True, slots=True)
class Terms:
    """A tenant's terms. A limit of 0 is prepaid; a null alert warns of nothing.

    Since `paused_at_us` nothing new is had on account, because an invoice is overdue.
    """

    receivable_limit_nano: int
    alert_below_nano: int | None
    paused_at_us: int | None = None


PREPAID = Terms(0, None)


_TERMS = Prepared(
    select(
        credit_terms.c.receivable_limit_nano,
        credit_terms.c.alert_below_nano,
        credit_terms.c.paused_at_us,
    ).where(credit_terms.c.tenant_id == bindparam("tenant_id"))
)


def terms_of(connection: Connection, tenant_id: str) -> Terms:
    """The tenant's terms; prepaid where none were ever set."""
    row = _TERMS.row(connection, {"tenant_id": tenant_id})
    return PREPAID if row is None else Terms(*row)


def receivable_limit(connection: Connection, tenant_id: str) -> int:
    """What the tenant may owe at most, in nano."""
    return terms_of(connection, tenant_id).receivable_limit_nano


def pause(connection: Connection, tenant_id: str, at_us: int | None) -> None:
    """Let a postpaid tenant have nothing new on account from now on; null ends that."""
    connection.execute(
        update(credit_terms).where(credit_terms.c.tenant_id == tenant_id).values(paused_at_us=at_us)
    )


def change(
    connection: Connection,
    tenant_id: str,
    *,
    receivable_limit_nano: int | None = None,
    alert_below_nano: int | None = None,
    without_alert: bool = False,
) -> Terms:
    """Change what is given. A limit below what is owed already admits nothing until it is paid.

    Raises UnknownTenant or InvalidAmount.
    """
    if connection.scalar(select(tenants.c.id).where(tenants.c.id == tenant_id)) is None:
        raise UnknownTenant(f"no tenant {tenant_id!r}")
    if (receivable_limit_nano or 0) < 0:
        raise InvalidAmount("a receivable limit is not below zero")
    if (alert_below_nano or 0) < 0:
        raise InvalidAmount("no balance is below zero: nobody would ever be alerted")
    now = clock.now_us()
    insert_once(
        connection,
        credit_terms,
        {"tenant_id": tenant_id, "receivable_limit_nano": 0, "changed_at_us": now},
    )
    changed: dict[str, int | None] = {"changed_at_us": now}
    if receivable_limit_nano is not None:
        changed["receivable_limit_nano"] = receivable_limit_nano
    if alert_below_nano is not None or without_alert:
        changed["alert_below_nano"] = alert_below_nano
        changed["alerted_at_us"] = None
    connection.execute(
        update(credit_terms).where(credit_terms.c.tenant_id == tenant_id).values(**changed)
    )
    return terms_of(connection, tenant_id)
