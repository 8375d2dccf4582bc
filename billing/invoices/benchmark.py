"""How long the close of a month takes, beside what the same database needs to read the same rows.

Nothing of the month is kept.
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
from billing.tables import rated_lines
from metering.database import open_database, snapshot, transaction

PROBE_PAUSE_S = 0.002


def measure(
    *, requests: int, tenants: int, lines: int, database_url: str | None = None
) -> dict[str, Any]:
    """Make a month, close it while a writer probes the lock, and say what it took."""
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(database_url or f"sqlite:///{Path(folder) / 'bench.db'}")
        try:
            made_month.make(database, requests, tenants, lines)
            return _measure(database, requests, tenants, lines)
        finally:
            database.dispose()


def _measure(database: Engine, requests: int, tenants: int, lines: int) -> dict[str, Any]:
    read_s = _timed(lambda: _read_all(database))
    probe = _Probe(database)
    held_ms = _watch_locks(database)
    memory_before = _memory_mib()
    issued = 0

    def run() -> None:
        nonlocal issued
        for closed in closing.close(database, made_month.LABEL):
            issued += closed.outcome is closing.Outcome.ISSUED

    probe.start()
    close_s = _timed(run)
    waits_ms = probe.stop()
    if issued != tenants:
        raise RuntimeError(f"{issued} invoices of {tenants} tenants")
    waits_ms.sort()
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
        "writer_waits": len(waits_ms),
        "writer_wait_p99_ms": round(waits_ms[int(len(waits_ms) * 0.99)], 1) if waits_ms else None,
        "writer_wait_max_ms": round(waits_ms[-1], 1) if waits_ms else None,
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


class _Probe:
    """A writer beside the close: how long it waits for the write lock, again and again."""

    def __init__(self, database: Engine) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._waits_ms: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[float]:
        self._stopping.set()
        self._thread.join()
        return self._waits_ms

    def _run(self) -> None:
        while not self._stopping.wait(PROBE_PAUSE_S):
            started = time.perf_counter()
            with transaction(self._database):
                self._waits_ms.append((time.perf_counter() - started) * 1000)


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
