"""How fast a batch is taken in, against the same database's raw batched inserts of the same rows.

Both are timed in turns, in one process, over the same rows and batches: the raw side puts each
batch into one plain table with a unique key, by the driver's batched insert, and commits it; intake
parses, checks, hashes, stores ids, detail and queue, commits, and answers for each event. On SQLite
each side has a file of its own: moving pages from the log into the database falls to whichever
commit fills the log, so with one file either would pay for the other's.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    insert,
)
from sqlalchemy import Engine as Database

from metering import clock
from metering.database import open_database, transaction
from metering.ingest_tables import outside_usage
from metering.ingestion import envelopes, intake
from metering.ingestion.envelopes import OutsideEvent
from metering.tables import tenants

SOURCE = "bench"
TENANT = "ten_bench"
KEY = "mkey_bench"


def measure(
    migrate: Callable[[str], object],
    *,
    events: int,
    batch: int,
    folder: Path | None,
    url: str | None,
) -> dict[str, Any]:
    """Fill a database that `migrate` brings to its schema, both ways in turns; the rates."""
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        target = url or f"sqlite:///{place / 'bench.db'}"
        migrate(target)
        with (
            _opened(target) as database,
            _opened(url or f"sqlite:///{place / 'raw.db'}") as plain,
        ):
            return _measure(database, plain, events, batch)


@contextmanager
def _opened(url: str) -> Iterator[Database]:
    database = open_database(url)
    try:
        yield database
    finally:
        database.dispose()


def _raw_table() -> Table:
    """A plain table for the rows of `outside_usage`, with the same unique key as its ids."""
    columns = [Column(each.name, each.type, nullable=False) for each in outside_usage.columns]
    key = PrimaryKeyConstraint("tenant_id", "source", "id")
    return Table("raw_inserts", MetaData(), *columns, key)


def _measure(database: Database, plain: Database, events: int, batch: int) -> dict[str, Any]:
    raw_table = _raw_table()
    raw_table.metadata.create_all(plain)
    with transaction(database) as connection:
        connection.execute(
            insert(tenants).values(
                id=TENANT,
                name=TENANT,
                currency="USD",
                time_zone="UTC",
                review_opt_in=False,
                review_delivery="now",
                suspended=False,
                created_at_us=0,
            )
        )
    allowed = frozenset({TENANT})
    spent = {"raw": 0.0, "intake": 0.0}
    accepted = 0
    for lines in _batches(events, batch):
        now = clock.now_us()
        read = [
            envelopes.read(line, source=SOURCE, tenant_ids=allowed, now_us=now) for line in lines
        ]
        rows = [_row(event, now) for event in read if isinstance(event, OutsideEvent)]
        started = time.perf_counter()
        with transaction(plain) as connection:
            connection.execute(insert(raw_table), rows)
        spent["raw"] += time.perf_counter() - started
        started = time.perf_counter()
        taken = [
            envelopes.read(line, source=SOURCE, tenant_ids=allowed, now_us=now) for line in lines
        ]
        answers = intake.take(database, KEY, taken)
        spent["intake"] += time.perf_counter() - started
        accepted += sum(answer.result is intake.Result.ACCEPTED for answer in answers)
    raw, ours = events / spent["raw"], accepted / spent["intake"]
    return {
        "database": database.dialect.name,
        "events": accepted,
        "batch": batch,
        "raw_inserts_per_s": round(raw),
        "intake_events_per_s": round(ours),
        "ratio": round(ours / raw, 3),
    }


def _row(event: OutsideEvent, now_us: int) -> dict[str, Any]:
    return {
        "tenant_id": event.tenant_id,
        "source": event.source,
        "id": event.id,
        "event_time_us": event.event_time_us,
        "ingested_at_us": now_us,
        "key_id": KEY,
        "body": event.body,
    }


def _batches(events: int, batch: int) -> Iterator[list[bytes]]:
    start = datetime.now(UTC)
    for first in range(0, events, batch):
        yield [
            json.dumps(
                {
                    "specversion": "1.0",
                    "id": f"event-{number:09}",
                    "source": SOURCE,
                    "type": "dev.dflash.usage.reported.v1",
                    "subject": TENANT,
                    "time": (start - timedelta(seconds=number % 3600)).isoformat(),
                    "data": {
                        "model": "other-model",
                        "input_tokens": 100 + number % 50,
                        "output_tokens": 200 + number % 90,
                        "energy_joules": f"{number % 40}.5",
                        "end_user": f"user-{number % 500}",
                    },
                }
            ).encode()
            for number in range(first, min(events, first + batch))
        ]
