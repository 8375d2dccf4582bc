"""The engine's own counters, per engine process, so that `reconcile` can compare them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Insert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.elements import KeyedColumnElement

from metering.clock import now_us
from metering.prepared import Prepared
from metering.tables import engine_counters

_NAMES = ("steps", "blocks", "tokens", "withheld_tokens")


@dataclass(slots=True)
class EpochCounts:
    """What one engine process did."""

    steps: int = 0
    blocks: int = 0
    tokens: int = 0
    withheld_tokens: int = 0


@dataclass(slots=True)
class Counts:
    """Counts of a batch, by engine epoch; and records of requests that are not live here."""

    by_epoch: dict[str, EpochCounts] = field(default_factory=dict)
    unknown_records: int = 0

    def of(self, epoch: str) -> EpochCounts:
        """The counts of one engine process, to be added to."""
        return self.by_epoch.setdefault(epoch, EpochCounts())

    def __add__(self, other: Counts) -> Counts:
        total = Counts(unknown_records=self.unknown_records + other.unknown_records)
        for counts in (self, other):
            for epoch, more in counts.by_epoch.items():
                sums = total.of(epoch)
                for name in _NAMES:
                    setattr(sums, name, getattr(sums, name) + getattr(more, name))
        return total


def add(connection: Connection, counts: Counts) -> None:
    """Add to the stored counters within the caller's transaction."""
    if not counts.by_epoch:
        return
    now = now_us()
    rows = [
        {"engine_epoch": epoch, "updated_at_us": now}
        | {name: getattr(more, name) for name in _NAMES}
        for epoch, more in counts.by_epoch.items()
    ]
    _COUNT.run_each(connection, rows)


def _upsert(dialect: str) -> Insert:
    if dialect == "postgresql":
        inserted = postgresql_insert(engine_counters)
        return inserted.on_conflict_do_update(
            index_elements=["engine_epoch"], set_=_sums(inserted.excluded)
        )
    upserted = sqlite_insert(engine_counters)
    return upserted.on_conflict_do_update(
        index_elements=["engine_epoch"], set_=_sums(upserted.excluded)
    )


def _sums(new: ReadOnlyColumnCollection[str, KeyedColumnElement[Any]]) -> dict[str, Any]:
    """What is stored, and what comes to it."""
    sums: dict[str, Any] = {name: engine_counters.c[name] + new[name] for name in _NAMES}
    return sums | {"updated_at_us": new["updated_at_us"]}


_COUNT = Prepared(_upsert)
