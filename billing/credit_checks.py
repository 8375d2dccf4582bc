"""Comparing grants and budgets with the ledger. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Select, func, select

from billing.credit_tables import budget_reservations, budget_windows, fundings, grants
from billing.differences import Difference
from billing.ledger.accounts import AccountKind
from billing.ledger.funding import CREDIT, RECEIVABLE
from billing.tables import accounts, transfers
from metering.ingest_tables import event_ids, outside_waiting
from metering.ingestion.outside import ROUTE as OUTSIDE
from metering.tables import requests

GONE = ("expiry", "reversal")


def check(connection: Connection) -> Iterator[Difference]:
    """Every difference between lots of credit, what they paid for, budgets and accounts."""
    yield from _lots(connection)
    yield from _promotional(connection)
    yield from _windows(connection)
    yield from _reported(connection)


def _reported(connection: Connection) -> Iterator[Difference]:
    """Every id that was accepted is a settled request, or waits to be one."""
    accepted, waiting = (
        int(connection.scalar(select(func.count()).select_from(table)) or 0)
        for table in (event_ids, outside_waiting)
    )
    settled = connection.scalar(
        select(func.count()).select_from(requests).where(requests.c.route == OUTSIDE)
    )
    if accepted != waiting + int(settled or 0):
        yield Difference(
            "accepted events = settled + waiting", "all", str(accepted), f"{settled} + {waiting}"
        )


def _lots(connection: Connection) -> Iterator[Difference]:
    """A grant is what is left of it, what requests have of it, and what went out again.

    Paid credit that returned to an expired grant's request became plain, so a grant may have less.
    """
    used = _sums(
        connection,
        select(fundings.c.source, func.sum(fundings.c.amount_nano))
        .where(fundings.c.source.not_in([CREDIT, RECEIVABLE]))
        .group_by(fundings.c.source),
    )
    gone = _sums(
        connection,
        select(transfers.c.reverses_id, func.sum(transfers.c.amount_nano))
        .where(transfers.c.kind.in_(GONE))
        .group_by(transfers.c.reverses_id),
    )
    for row in connection.execute(select(grants).order_by(grants.c.id)):
        accounted = row.remaining_nano + used.get(row.id, 0) + gone.get(row.id, 0)
        is_plain_now = row.kind == "paid" and row.expires_at_us is not None
        if accounted > row.amount_nano or (accounted < row.amount_nano and not is_plain_now):
            yield Difference(
                "grant = left + used + gone", row.id, str(row.amount_nano), str(accounted)
            )


def _promotional(connection: Connection) -> Iterator[Difference]:
    balance = accounts.c.credits_nano - accounts.c.debits_nano
    for kind, account in (
        ("promotional", AccountKind.PROMOTIONAL),
        ("paid", AccountKind.TENANT_CREDIT),
    ):
        lots = _sums(
            connection,
            select(grants.c.tenant_id, func.sum(grants.c.remaining_nano))
            .where(grants.c.kind == kind)
            .group_by(grants.c.tenant_id),
        )
        booked = _sums(
            connection,
            select(accounts.c.tenant_id, balance).where(accounts.c.kind == account),
        )
        for tenant_id in sorted(lots.keys() | booked.keys()):
            left, had = lots.get(tenant_id, 0), booked.get(tenant_id, 0)
            if left > had or (kind == "promotional" and left != had):
                yield Difference(f"{kind} grants = account", tenant_id, str(had), str(left))


def _windows(connection: Connection) -> Iterator[Difference]:
    columns = (budget_reservations.c.reserved_nano, budget_reservations.c.spent_nano)
    parts = {
        (row[0], row[1]): (int(row[2]), int(row[3]))
        for row in connection.execute(
            select(
                budget_reservations.c.budget_id,
                budget_reservations.c.start_us,
                *(func.sum(column) for column in columns),
            ).group_by(budget_reservations.c.budget_id, budget_reservations.c.start_us)
        )
    }
    for row in connection.execute(select(budget_windows).order_by(budget_windows.c.budget_id)):
        expected = parts.get((row.budget_id, row.start_us), (0, 0))
        counted = (row.reserved_nano, row.spent_nano)
        if counted != expected:
            yield Difference(
                "budget window = its requests", row.budget_id, str(expected), str(counted)
            )


def _sums(connection: Connection, query: Select[*tuple[Any, ...]]) -> dict[str, int]:
    return {name: int(amount) for name, amount in connection.execute(query)}
