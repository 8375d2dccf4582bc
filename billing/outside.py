"""Rating what other engines reported: each event becomes a settled request that its tenant owes.

An event is priced by the tariff in force when it happened. One that has no price waits and says
why: it is never charged as nothing, and never forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import msgspec
from sqlalchemy import Connection, Row, delete, func, select, update
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DataError

from billing import catalogue
from billing.errors import BillingError, NoTariff
from billing.ledger.accounts import lock_tenant
from billing.ledger.balances import currency_of
from billing.settlement import Settlement
from metering import requests
from metering.database import transaction
from metering.ingest_tables import outside_usage, outside_waiting
from metering.ingestion import partitions
from metering.ingestion.envelopes import PAST_DAYS_MAX, usage_of
from metering.ingestion.outside import request_of, summary_of

BATCH = 200
DAY_US = 86_400 * 10**6
REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class Rated:
    """What one round did."""

    settled: int
    unrated: int  # left waiting, each with its reason


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is accepted and not rated yet."""

    events: int
    oldest_ingested_at_us: int | None
    unrated: int  # tried, and without a price


@dataclass(frozen=True, slots=True)
class Unrated:
    """One event that could not be rated, and why. It is tried again every round."""

    tenant_id: str
    source: str
    id: str
    event_time_us: int
    ingested_at_us: int
    reason: str


def settle_waiting(database: Database, settlement: Settlement) -> Rated:
    """Rate up to a batch of waiting events, oldest first, a transaction for each tenant.

    Those that have no price are tried again in every round, behind those not tried yet; so are all
    of a tenant whose transaction fails. Raises an ExceptionGroup of what failed, once the others'
    are rated.
    """
    with database.connect() as connection:
        found = connection.execute(
            select(outside_waiting.c.tenant_id, outside_waiting.c.seq)
            .order_by(outside_waiting.c.reason.is_not(None), outside_waiting.c.seq)
            .limit(BATCH)
        ).all()
    settled = unrated = 0
    failed: list[Exception] = []
    by_tenant = sorted(found, key=lambda row: (row[0], row[1]))
    for tenant_id, rows in groupby(by_tenant, key=lambda row: row[0]):
        seqs = [row[1] for row in rows]
        try:
            with transaction(database) as connection:
                one = _settle_tenant(connection, settlement, tenant_id, seqs)
        except Exception as error:  # noqa: BLE001 -- raised below, when all had their turn
            error.add_note(f"usage of {tenant_id}")
            failed.append(error)
            with transaction(database) as connection:
                _set_aside(connection, seqs, "its tenant's usage cannot be settled")
        else:
            settled, unrated = settled + one.settled, unrated + one.unrated
    if failed:
        raise ExceptionGroup("usage that cannot be settled", failed)
    return Rated(settled, unrated)


def waiting(connection: Connection) -> Waiting:
    """How much waits to be rated, and since when."""
    events, oldest, unrated = connection.execute(
        select(
            func.count(),
            func.min(outside_waiting.c.ingested_at_us),
            func.count(outside_waiting.c.reason),
        ).select_from(outside_waiting)
    ).one()
    return Waiting(int(events), oldest, int(unrated))


def unrated(connection: Connection, limit: int) -> list[Unrated]:
    """What was tried and has no price, oldest first. Changes nothing."""
    names = (outside_waiting.c[name] for name in Unrated.__slots__)
    query = select(*names).where(outside_waiting.c.reason.is_not(None))
    return [
        Unrated(*row)
        for row in connection.execute(query.order_by(outside_waiting.c.seq).limit(limit))
    ]


def forget_detail(connection: Connection, now_us: int) -> int:
    """Drop the detail of reported events that no event can still be sent for; how much it was.

    Their ids stay, and so do the requests they became. On PostgreSQL whole months go.
    """
    oldest = connection.scalar(select(func.min(outside_waiting.c.event_time_us)))
    before = min(now_us - PAST_DAYS_MAX * DAY_US, now_us if oldest is None else oldest)
    if connection.dialect.name == "postgresql":
        return len(partitions.drop_before(connection, before))
    gone = delete(outside_usage).where(outside_usage.c.event_time_us < before)
    return int(connection.execute(gone).rowcount)


def _settle_tenant(
    connection: Connection, settlement: Settlement, tenant_id: str, seqs: list[int]
) -> Rated:
    lock_tenant(connection, tenant_id, currency_of(connection, tenant_id))
    # Read again under the lock: another process may have settled them meanwhile.
    rows = connection.execute(
        select(outside_usage, outside_waiting.c.seq)
        .join(
            outside_waiting,
            (outside_waiting.c.tenant_id == outside_usage.c.tenant_id)
            & (outside_waiting.c.source == outside_usage.c.source)
            & (outside_waiting.c.id == outside_usage.c.id)
            & (outside_waiting.c.event_time_us == outside_usage.c.event_time_us),
        )
        .where(outside_waiting.c.seq.in_(seqs))
        .order_by(outside_waiting.c.seq)
    ).all()
    settled = []
    for row in rows:
        try:
            with connection.begin_nested():
                _settle(connection, settlement, row)
        except (BillingError, DataError, msgspec.ValidationError) as error:
            # Whatever is wrong with one event, nothing behind it waits for that.
            reason = "it cannot be stored" if isinstance(error, DataError) else str(error)
            _set_aside(connection, [row.seq], reason)
        else:
            settled.append(row.seq)
    connection.execute(delete(outside_waiting).where(outside_waiting.c.seq.in_(settled)))
    return Rated(len(settled), len(rows) - len(settled))


def _set_aside(connection: Connection, seqs: list[int], reason: str) -> None:
    connection.execute(
        update(outside_waiting)
        .where(outside_waiting.c.seq.in_(seqs))
        .values(reason=reason[:REASON_CHARS])
    )


def _settle(connection: Connection, settlement: Settlement, row: Row[*tuple[object, ...]]) -> None:
    found = usage_of(row.body)
    version = catalogue.tariff_in_force(connection, row.tenant_id, row.event_time_us)
    if version.currency != currency_of(connection, row.tenant_id):
        raise NoTariff(f"{version.id} is not in the tenant's currency")
    request = request_of(
        found,
        identity=(row.tenant_id, row.source, row.id),
        key_id=row.key_id,
        at_us=row.event_time_us,
        tariff=version.id,
    )
    requests.admit(connection, request)
    summary = summary_of(found, request)
    requests.finalise(connection, summary, "")
    settlement.settle_outside(connection, summary)
