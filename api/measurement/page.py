"""How long the tenant's first page takes to be read, on a month of a million requests."""

from __future__ import annotations

import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Engine

from billing.invoices import made_month
from dashboards.billing import overview
from dashboards.ranges import DateRange
from metering.database import open_database, snapshot

GOAL_MS = 50.0
MONTH = DateRange(date(2026, 1, 1), date(2026, 1, 31), ZoneInfo("UTC"))
LINES = 6


def measure(
    *, requests: int, tenants: int, reads: int, database_url: str | None = None
) -> dict[str, Any]:
    """Make the month, then read the whole month of one tenant after the other."""
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(database_url or f"sqlite:///{Path(folder) / 'bench.db'}")
        try:
            made_month.make(database, requests, tenants, LINES, with_receipts=True)
            return _measure(database, requests, tenants, reads)
        finally:
            database.dispose()


def _measure(database: Engine, requests: int, tenants: int, reads: int) -> dict[str, Any]:
    spent_ms = sorted(_read_ms(database, number % tenants) for number in range(reads))
    median = statistics.median(spent_ms)
    return {
        "database": database.dialect.name,
        "requests": requests,
        "tenants": tenants,
        "reads": reads,
        "page_ms_median": round(median, 1),
        "page_ms_max": round(spent_ms[-1], 1),
        "goal_to_median": round(GOAL_MS / median, 2),
    }


def _read_ms(database: Engine, number: int) -> float:
    started = time.perf_counter()
    with snapshot(database) as connection:
        found = overview.read(connection, made_month.tenant_id(number), MONTH)
    spent_ms = (time.perf_counter() - started) * 1e3
    if not found.charges or not found.receipts:
        raise RuntimeError("the month is empty: there was nothing to read")
    return spent_ms
