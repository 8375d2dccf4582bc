"""How long the close of a month takes, beside what the same database needs to read the same rows.

The month is made in the database: requests, their rated lines and their ledger, as settlement
leaves them, a hundred tokens each. Nothing of it is kept.
"""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, func, insert, select

from billing import catalogue, periods, tariffs
from billing.invoices import closing
from billing.ledger import credits
from billing.money import NANO
from billing.tables import metadata as billing_metadata
from billing.tables import rated_lines, tariff_versions
from metering import clock
from metering.database import open_database, snapshot, transaction
from metering.tables import metadata as metering_metadata
from metering.tables import requests as requests_table
from metering.tables import tenants as tenants_table

LABEL = "2026-01"
BATCH = 2_000
PROBE_PAUSE_S = 0.002
COMPONENTS = (
    ("input", "", "tokens", "0.0000001"),
    ("output", "complete/standard", "tokens", "0.0000004"),
    ("output", "fragment/reduced", "tokens", "0.0000005"),
    ("energy", "estimated", "joules", "0.00000004"),
    ("information", "", "bits", "0.00000005"),
    ("blocks", "", "blocks", "0.00000002"),
    ("request", "", "requests", "0.000002"),
    ("minimum", "", "requests", "0.000001"),
)


def measure(
    *, requests: int, tenants: int, lines: int, database_url: str | None = None
) -> dict[str, Any]:
    """Make a month, close it while a writer probes the lock, and say what it took."""
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(database_url or f"sqlite:///{Path(folder) / 'bench.db'}")
        try:
            _make(database, requests, tenants, lines)
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
        for closed in closing.close(database, LABEL):
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


def _make(database: Engine, requests: int, tenants: int, lines: int) -> None:
    period = periods.month(LABEL, "UTC")
    with transaction(database) as connection:
        metering_metadata.create_all(connection)
        billing_metadata.create_all(connection)
        version_id = _version(connection)
        for number in range(tenants):
            _tenant(connection, f"ten_{number:05d}")
    step_us = (period.end_us - period.start_us) // requests
    numbers = iter(range(requests))
    while batch := [number for number, _ in zip(numbers, range(BATCH), strict=False)]:
        with transaction(database) as connection:
            made = [
                (
                    f"req_{number:09d}",
                    f"ten_{number % tenants:05d}",
                    period.start_us + number * step_us,
                )
                for number in batch
            ]
            connection.execute(
                insert(requests_table), [_request(*each, version_id) for each in made]
            )
            connection.execute(
                insert(rated_lines),
                [line for each in made for line in _lines(*each, version_id, lines)],
            )
    if database.dialect.name == "postgresql":
        with database.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("ANALYZE")


def _version(connection: Connection) -> str:
    shipped = tariffs.shipped()["composite"]
    published = catalogue.publish(connection, shipped, 0)
    found = connection.scalar(select(tariff_versions.c.id))
    return found or published.id


def _tenant(connection: Connection, tenant_id: str) -> None:
    connection.execute(
        insert(tenants_table).values(
            id=tenant_id,
            name=tenant_id,
            currency="USD",
            time_zone="UTC",
            review_opt_in=False,
            review_delivery="now",
            suspended=False,
            created_at_us=clock.now_us(),
        )
    )
    catalogue.assign(connection, tenant_id, "composite", 0)
    credits.grant(connection, tenant_id, NANO, "benchmark")


def _request(request_id: str, tenant_id: str, at_us: int, version_id: str) -> dict[str, Any]:
    return {
        "id": request_id,
        "tenant_id": tenant_id,
        "key_id": "key_bench",
        "model": "bench",
        "route": "generate",
        "tariff_version_id": version_id,
        "status": "completed",
        "finish_reason": "stop",
        "parameters": "{}",
        "input_tokens": 20,
        "max_tokens": 100,
        "test_mode": False,
        "started_at_us": at_us,
        "ended_at_us": at_us,
    }


def _lines(
    request_id: str, tenant_id: str, at_us: int, version_id: str, count: int
) -> Iterator[dict[str, Any]]:
    for number, (component, detail, unit, price) in enumerate(COMPONENTS[:count]):
        yield {
            "request_id": request_id,
            "line": number,
            "tenant_id": tenant_id,
            "tariff_version_id": version_id,
            "component": component,
            "detail": detail,
            "quantity": "12.3" if unit in ("joules", "bits") else "20",
            "unit": unit,
            "unit_price": price,
            "amount_nano": 1_000 + number,
            "currency": "USD",
            "event_time_us": at_us,
        }


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
