"""Gapless numbers: the next one of a series, taken in the transaction that uses it.

A transaction that fails gives its number back, and two that run at once wait for each other, so a
series has neither gaps nor doubles.
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, update

from billing.invoices.tables import invoice_numbers
from billing.rows import insert_once
from metering.prepared import Prepared

CREDIT_NOTES = "CN"  # their series; invoices have one of their own


_NEXT = Prepared(
    update(invoice_numbers)
    .where(invoice_numbers.c.series == bindparam("of_series"))
    .values(last=invoice_numbers.c.last + 1)
    .returning(invoice_numbers.c.last)
)


def take(connection: Connection, series: str) -> str:
    """The next number of a series, such as "INV-000017"; locks the series until the end."""
    insert_once(connection, invoice_numbers, {"series": series, "last": 0})
    last = _NEXT.one(connection, {"of_series": series}).last
    return f"{series}-{last:06d}"
