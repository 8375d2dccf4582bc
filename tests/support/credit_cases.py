"""What paid for a request, and whether all books of credit agree."""

from __future__ import annotations

from billing_world import books_balance
from sqlalchemy import Connection, select

from billing.credit_checks import check
from billing.credit_tables import fundings


def paid_by(connection: Connection, request_id: str) -> list[tuple[str, int]]:
    rows = connection.execute(
        select(fundings.c.source, fundings.c.amount_nano)
        .where(fundings.c.request_id == request_id)
        .order_by(fundings.c.position)
    )
    return [(source.rpartition("/")[2], amount) for source, amount in rows]


def square(connection: Connection) -> None:
    books_balance(connection)
    assert list(check(connection)) == []
