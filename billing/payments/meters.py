"""Usage told to the provider's own meters, for tenants whose dashboards there want it. Optional.

Our invoices stay authoritative, but whoever lets the provider bill by its meters bills the same
requests: those that count in prices of the month, and so none in test mode. An hour is told once it
is over, as what it comes to beyond what was told of it before, under an identifier made of the hour
and of that; so a late event is a second, smaller one, and a replay is none. Its requests are added
up when its rollup, which has all of them, says something new. The time told is the hour's own. An
hour older than the provider takes is never told under another time.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, Row, and_, func, select, update

from billing.errors import PaymentConflict
from billing.invoices import usage
from billing.payments import collection, outbox
from billing.payments.tables import payment_metered, payment_meters
from billing.rows import insert_once
from billing.turns import turns
from metering import clock
from metering.database import snapshot, transaction
from metering.ingest_tables import usage_rollups
from metering.tables import request_summaries, requests

MEASURES = ("requests", "input_tokens", "output_tokens")
HOUR_US = 3600 * 10**6
DAY_US = 24 * HOUR_US
AFTER_US = 5 * 60 * 10**6  # the hour's last requests are rolled up by then, as nearly always
PAST_DAYS_MAX = 35  # what Stripe takes
MARGIN_US = DAY_US  # for what waits in the outbox meanwhile


def begin(connection: Connection, tenant_id: str, measure: str, event_name: str) -> bool:
    """Tell a measure of a tenant from this hour on; false if it was told before.

    Raises PaymentConflict for a tenant that does not pay through the provider, or no measure.
    """
    if measure not in MEASURES:
        raise PaymentConflict(f"{measure} is not told; {', '.join(MEASURES)} are")
    if collection.account(connection, tenant_id) is None:
        raise PaymentConflict(f"{tenant_id} does not pay through the provider")
    now = clock.now_us()
    row = {
        "tenant_id": tenant_id,
        "measure": measure,
        "event_name": event_name,
        "from_us": now - now % HOUR_US,
    }
    return insert_once(connection, payment_meters, row)


def event_name(connection: Connection, tenant_id: str, measure: str) -> str | None:
    """Which meter is told a measure of a tenant, or null."""
    found: str | None = connection.scalar(
        select(payment_meters.c.event_name).where(
            payment_meters.c.tenant_id == tenant_id, payment_meters.c.measure == measure
        )
    )
    return found


def queue(database: Engine) -> int:
    """Queue what of hours that are over was not told yet; how many rows.

    Raises an ExceptionGroup of the meters that could not be read, once the others were.
    """
    with snapshot(database) as connection:
        meters = connection.execute(select(payment_meters)).all()
    queued = 0
    with turns("meters") as each:
        for meter in meters:
            with each.of(meter.tenant_id):
                with snapshot(database) as connection:
                    hours = _changed(connection, meter)
                for hour in hours:
                    with transaction(database) as connection:
                        queued += _tell(connection, meter, hour)
    return queued


@dataclass(frozen=True, slots=True)
class _Hour:
    """An hour of a meter whose rollup has changed since it was looked at."""

    start_us: int
    rolled_up: int
    counted: int
    told: int | None  # null where it was never looked at


def _changed(connection: Connection, meter: Row[tuple[object, ...]]) -> list[_Hour]:
    """The hours of a meter that were rolled up anew, and what they come to."""
    now = clock.now_us()
    rollup, metered = usage_rollups.c, payment_metered.c
    total = func.sum(rollup[meter.measure])
    rows = connection.execute(
        select(rollup.start_us, total, func.max(metered.told))
        .select_from(usage_rollups)
        .outerjoin(
            payment_metered,
            and_(
                metered.tenant_id == rollup.tenant_id,
                metered.measure == meter.measure,
                metered.start_us == rollup.start_us,
            ),
        )
        .where(
            rollup.tenant_id == meter.tenant_id,
            rollup.width == "hour",
            rollup.start_us >= max(meter.from_us, now - PAST_DAYS_MAX * DAY_US + MARGIN_US),
            rollup.start_us <= now - HOUR_US - AFTER_US,
        )
        .group_by(rollup.start_us)
        .having(total != func.coalesce(func.max(metered.rolled_up), 0))
        .order_by(rollup.start_us)
    ).all()
    return [
        _Hour(int(start), int(rolled_up), _counted(connection, meter, int(start)), told)
        for start, rolled_up, told in rows
    ]


def _counted(connection: Connection, meter: Row[tuple[object, ...]], start_us: int) -> int:
    """What the requests of an hour come to that count in prices."""
    summary = request_summaries.c
    measured = func.count() if meter.measure == "requests" else func.sum(summary[meter.measure])
    query = (
        select(func.coalesce(measured, 0))
        .select_from(request_summaries)
        .join(requests, requests.c.id == summary.request_id)
        .where(
            summary.tenant_id == meter.tenant_id,
            summary.ended_at_us >= start_us,
            summary.ended_at_us < start_us + HOUR_US,
            *usage.counted(),
        )
    )
    return int(connection.scalar(query) or 0)


def _tell(connection: Connection, meter: Row[tuple[object, ...]], hour: _Hour) -> bool:
    """Queue what an hour has more than was told, and note it, together; false if it has no more, or
    another told it meanwhile.
    """
    key = {"tenant_id": meter.tenant_id, "measure": meter.measure, "start_us": hour.start_us}
    told = hour.told or 0
    at_s = hour.start_us // 10**6
    is_more = hour.counted > told
    if is_more:
        body = {
            "customer": {"object": "customer", "of": meter.tenant_id},
            "event": meter.event_name,
            "value": hour.counted - told,
            "told": told,
            "at_s": at_s,
        }
        subject = f"{meter.tenant_id}/{meter.measure}/{at_s}/{told}"
        if not outbox.enqueue(connection, meter.tenant_id, "meter", subject, body):
            return False
    values = {"told": max(told, hour.counted), "rolled_up": hour.rolled_up}
    if hour.told is None:
        insert_once(connection, payment_metered, key | values)
    else:
        # As it was read: what another has noted meanwhile is not undone.
        connection.execute(
            update(payment_metered)
            .where(*(payment_metered.c[name] == value for name, value in key.items()))
            .where(payment_metered.c.told == told)
            .values(values)
        )
    return is_more
