"""How long what a tenant and its finance team look at takes to be read, over a whole month."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, Engine

from billing import queries as billing_queries
from billing import spending
from billing.invoices import closing, made_month
from billing.invoices import queries as invoice_queries
from dashboards.billing import overview
from dashboards.ranges import DateRange
from metering import queries as metering_queries
from metering.database import open_database, snapshot
from metering.queries import Bucket

MONTH = DateRange(date(2026, 1, 1), date(2026, 1, 31), ZoneInfo("UTC"))
LINES = 6

Read = Callable[[Connection, str], object]  # of one tenant
SPAN = (MONTH.start_us, MONTH.end_us)


def measure(
    *, requests: int, tenants: int, reads: int, database_url: str | None = None
) -> dict[str, Any]:
    """Make the month, then read it whole of one tenant after the other, each read by itself.

    A database that holds such a month already is taken as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(database_url or f"sqlite:///{Path(folder) / 'bench.db'}")
        try:
            if not made_month.is_made(database, requests):
                made_month.make(database, requests, tenants, LINES, with_receipts=True)
            return _measure(database, requests, tenants, reads)
        finally:
            database.dispose()


def _measure(database: Engine, requests: int, tenants: int, reads: int) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "database": database.dialect.name,
        "requests": requests,
        "tenants": tenants,
        "reads": reads,
    }
    for name, read in READS.items():
        spent_ms = sorted(
            _read_ms(database, read, made_month.tenant_id(number % tenants))
            for number in range(reads)
        )
        figures[f"{name}_ms_median"] = round(statistics.median(spent_ms), 1)
        figures[f"{name}_ms_max"] = round(spent_ms[-1], 1)
    return figures


def _overview(connection: Connection, tenant_id: str) -> object:
    found = overview.read(connection, tenant_id, MONTH)
    if not found.charges or not found.receipts:
        raise RuntimeError("the month is empty: there was nothing to read")
    return found


# The first is the whole first page; the next are what it is made of; the rest other pages' and the
# API's.
READS: dict[str, Read] = {
    "page": _overview,
    "charges": lambda connection, owner: billing_queries.charges(connection, owner, *SPAN),
    "usage_by_day": lambda connection, owner: metering_queries.usage(
        connection, owner, *SPAN, Bucket.DAY
    ),
    "scores": lambda connection, owner: metering_queries.confidence_histogram(
        connection, owner, *SPAN
    ),
    "receipts": lambda connection, owner: billing_queries.receipt_rows(
        connection, owner, start_us=SPAN[0], end_us=SPAN[1], limit=51
    ),
    "usage_by_hour": lambda connection, owner: metering_queries.usage(
        connection, owner, *SPAN, Bucket.HOUR
    ),
    "spending": lambda connection, owner: spending.spending(
        connection, owner, *SPAN, spending.Division.KEY
    ),
    "statement": lambda connection, owner: billing_queries.statement(connection, owner, 51),
    "invoices": lambda connection, owner: invoice_queries.rows(
        connection, tenant_id=owner, limit=25
    ),
    "month_so_far": lambda connection, owner: closing.preview(connection, owner, made_month.LABEL),
}


def _read_ms(database: Engine, read: Read, tenant_id: str) -> float:
    started = time.perf_counter()
    with snapshot(database) as connection:
        read(connection, tenant_id)
    return (time.perf_counter() - started) * 1e3
