"""Credit that is bought by itself when it runs low, with the card that was used before."""

from __future__ import annotations

from typing import Any

import uuid_utils
from sqlalchemy import Connection, Engine, select, update

from billing.errors import InvalidAmount, PaymentsDisabled
from billing.ledger.accounts import lock_tenant
from billing.ledger.balances import balance, currency_of
from billing.payments import collection, outbox, top_ups
from billing.payments.tables import payment_accounts
from billing.payments.tables import top_ups as top_ups_table
from billing.turns import turns
from metering.database import snapshot, transaction
from metering.tables import tenants


def order(
    connection: Connection, tenant_id: str, *, below_nano: int | None, amount_minor: int | None
) -> None:
    """Buy so much whenever available credit falls below a bound; null for both turns it off.

    Raises PaymentsDisabled, or InvalidAmount.
    """
    if collection.account(connection, tenant_id) is None:
        raise PaymentsDisabled(f"{tenant_id} does not pay through the provider")
    if (below_nano is None) != (amount_minor is None):
        raise InvalidAmount("a recharge has both a bound and an amount")
    if amount_minor is not None and amount_minor <= 0:
        raise InvalidAmount("a recharge is above zero")
    connection.execute(
        update(payment_accounts)
        .where(payment_accounts.c.tenant_id == tenant_id)
        .values(recharge_below_nano=below_nano, recharge_minor=amount_minor, recharge_failed=False)
    )


def recharge(database: Engine) -> int:
    """Queue a purchase for every tenant that has run low and has none under way; how many.

    A tenant whose last recharge failed is left alone until its recharge is set again, and one that
    is suspended until it is taken back: it could spend nothing of what it bought. Raises an
    ExceptionGroup of what could not be queued, once the others' is.
    """
    with snapshot(database) as connection:
        chosen = list(
            connection.scalars(
                select(payment_accounts.c.tenant_id)
                .join(tenants, tenants.c.id == payment_accounts.c.tenant_id)
                .where(
                    tenants.c.suspended.is_(False),
                    payment_accounts.c.recharge_minor.is_not(None),
                    payment_accounts.c.recharge_failed.is_(False),
                )
                .order_by(payment_accounts.c.tenant_id)
            )
        )
    count = 0
    with turns("recharges") as each:
        for tenant_id in chosen:
            with each.of(tenant_id), transaction(database) as connection:
                count += _recharge(connection, tenant_id)
    return count


def _recharge(connection: Connection, tenant_id: str) -> bool:
    currency = currency_of(connection, tenant_id)
    lock_tenant(connection, tenant_id, currency)
    if connection.scalar(select(tenants.c.suspended).where(tenants.c.id == tenant_id)):
        return False  # since it was chosen
    found = collection.account(connection, tenant_id)
    if found is None or found.recharge_minor is None or found.recharge_failed:
        return False
    if balance(connection, tenant_id).available_nano >= (found.recharge_below_nano or 0):
        return False
    running = connection.scalar(
        select(top_ups_table.c.id).where(
            top_ups_table.c.tenant_id == tenant_id,
            top_ups_table.c.kind == "recharge",
            top_ups_table.c.state == "open",
        )
    )
    if running is not None:
        return False
    reference = f"recharge-{uuid_utils.uuid7().hex}"
    made = top_ups.add(
        connection,
        tenant_id,
        reference,
        kind="recharge",
        currency=currency,
        amount_minor=found.recharge_minor,
    )
    body: dict[str, Any] = {
        "customer": {"object": "customer", "of": tenant_id},
        "amount": made.amount_minor,
        "currency": currency.lower(),
        "description": "Prepaid credit, recharged",
    }
    return outbox.enqueue(connection, tenant_id, "recharge", made.id, body)
