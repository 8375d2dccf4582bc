"""How long the close of a month takes, beside what the same database needs to read the same rows.

Requests are admitted meanwhile by another process, as beside a gateway that serves.
"""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, func, select

from billing.invoices import closing, made_month
from billing.invoices.admission_load import AdmissionLoad
from billing.tables import rated_lines
from metering.database import open_database, snapshot


def measure(
    *, requests: int, tenants: int, lines: int, database_url: str | None = None
) -> dict[str, Any]:
    """Make a month, close it while requests are admitted, and say what it took.

    A database that holds such a month already, not closed yet, is taken as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(database_url or f"sqlite:///{Path(folder) / 'bench.db'}")
        try:
            if not made_month.is_made(database, requests):
                made_month.make(database, requests, tenants, lines)
            return _measure(database, requests, tenants, lines)
        finally:
            database.dispose()


def _measure(database: Engine, requests: int, tenants: int, lines: int) -> dict[str, Any]:
    read_s = _timed(lambda: _read_all(database))
    load = AdmissionLoad(
        database.url.render_as_string(hide_password=False),
        [made_month.tenant_id(number) for number in range(tenants)],
    )
    held_ms = _watch_locks(database)
    memory_before = _memory_mib()
    issued = 0

    def run() -> None:
        nonlocal issued
        for closed in closing.close(database, made_month.LABEL):
            issued += closed.outcome is closing.Outcome.ISSUED

    load.start()
    close_s = _timed(run)
    waits_ms = load.stop()
    if issued != tenants:
        raise RuntimeError(f"{issued} invoices of {tenants} tenants")
    return {
        "database": database.dialect.name,
        "requests": requests,
        "tenants": tenants,
        "rated_lines": requests * lines,
        "read_s": round(read_s, 3),
        "close_s": round(close_s, 3),
        "close_to_read_ratio": round(close_s / read_s, 2),
        "requests_per_s": round(requests / close_s),
        "lock_held_max_ms": round(max(held_ms), 1),
        "admissions": len(waits_ms),
        "admission_p99_ms": round(waits_ms[int(len(waits_ms) * 0.99)], 1) if waits_ms else None,
        "admission_max_ms": round(waits_ms[-1], 1) if waits_ms else None,
        "memory_mib_max": round(_memory_mib()),
        "memory_mib_before": round(memory_before),
    }


def _watch_locks(database: Engine) -> list[float]:
    """From now on, how long each write transaction of this thread works under its lock."""
    held_ms: list[float] = []
    here = threading.get_ident()
    began = [0.0]

    def begin(connection: Connection) -> None:
        if threading.get_ident() == here:
            began[0] = time.perf_counter()

    def commit(connection: Connection) -> None:
        # Called before the commit, whose sync is the disk's and not in this figure.
        if threading.get_ident() == here and connection.get_execution_options().get("dflash_write"):
            held_ms.append((time.perf_counter() - began[0]) * 1000)

    event.listen(database, "begin", begin)
    event.listen(database, "commit", commit)
    return held_ms


def _read_all(database: Engine) -> None:
    """The least that any close must do: see every amount of every line once."""
    with snapshot(database) as connection:
        connection.execute(
            select(
                rated_lines.c.tenant_id,
                rated_lines.c.component,
                func.sum(rated_lines.c.amount_nano),
                func.max(rated_lines.c.quantity),
            ).group_by(rated_lines.c.tenant_id, rated_lines.c.component)
        ).all()


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _memory_mib() -> float:
    """The most that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
