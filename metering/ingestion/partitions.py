"""The months that PostgreSQL's detail is divided into; SQLite keeps one table.

A month's table is made before its first event is stored, in a transaction of its own: making it
locks its parent, which no ingestion should wait for.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from sqlalchemy import Connection, text
from sqlalchemy import Engine as Database

from metering.database import transaction

ADVISORY_LOCK = 0x70617274  # "part": any constant nobody else takes
PARENT = "outside_usage"
DAY_US = 86_400 * 10**6


def month_of(at_us: int) -> tuple[int, int, str]:
    """[start, end) of the UTC month of a moment, and the name of its table."""
    at = datetime.fromtimestamp(at_us // 10**6, UTC)
    first = datetime(at.year, at.month, 1, tzinfo=UTC)
    following = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    start, end = (int(each.timestamp()) * 10**6 for each in (first, following))
    return start, end, f"{PARENT}_{first:%Y_%m}"


def ensure(database: Database, moments_us: Iterable[int]) -> None:
    """Make the tables of these moments' months where they are missing. Nothing on SQLite."""
    if database.dialect.name != "postgresql":
        return
    days = {at_us // DAY_US for at_us in moments_us}
    months = {month_of(day * DAY_US) for day in days}
    with database.connect() as connection:
        missing = months - {month for month in months if _exists(connection, month[2])}
    if not missing:
        return
    with transaction(database) as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        for start, end, name in sorted(missing):
            connection.exec_driver_sql(
                f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {PARENT}"
                f" FOR VALUES FROM ({start}) TO ({end})"
            )


def drop_before(connection: Connection, before_us: int) -> list[str]:
    """Drop whole months that ended by a moment; the names of their tables.

    Whoever calls has made sure that nothing in them waits to be rated.
    """
    names = connection.scalars(
        text(
            "SELECT child.relname FROM pg_inherits"
            " JOIN pg_class AS child ON child.oid = inhrelid"
            " JOIN pg_class AS parent ON parent.oid = inhparent WHERE parent.relname = :parent"
        ),
        {"parent": PARENT},
    )
    dropped = []
    for name in sorted(names):
        year, month = (int(part) for part in name.removeprefix(f"{PARENT}_").split("_"))
        _, end, _ = month_of(int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 10**6)
        if end <= before_us:
            connection.exec_driver_sql(f"DROP TABLE {name}")
            dropped.append(name)
    return dropped


def _exists(connection: Connection, name: str) -> bool:
    return connection.scalar(text("SELECT to_regclass(:name)"), {"name": name}) is not None
