"""Usage told to the provider's own meters, for tenants whose dashboards there want it. Optional.

Our invoices stay authoritative: this is shown there and billed by nobody. An hour is told once it
is over, as what its rollup says beyond what was told of it before, under an identifier made of the
hour and of that; so a late event is a second, smaller one, and a replay is none. The time told is
the hour's own. An hour older than the provider takes is never told under another time.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, Row, and_, func, insert, select, update

from billing.errors import PaymentConflict
from billing.payments import collection, outbox
from billing.payments.tables import payment_metered, payment_meters
from billing.rows import insert_once
from billing.turns import turns
from metering import clock
from metering.database import snapshot, transaction
from metering.ingest_tables import usage_rollups

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
                    hours = _untold(connection, meter)
                for start_us, total, told in hours:
                    with transaction(database) as connection:
                        queued += _tell(connection, meter, start_us, total=total, told=told)
    return queued


def _untold(connection: Connection, meter: Row[tuple[object, ...]]) -> list[tuple[int, int, int]]:
    """The hours of a meter that hold more than was told: start, what they hold, what was told."""
    now = clock.now_us()
    rollup, metered = usage_rollups.c, payment_metered.c
    total = func.sum(rollup[meter.measure])
    told = func.coalesce(func.max(metered.told), 0)
    rows = connection.execute(
        select(rollup.start_us, total, told)
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
        .having(total > told)
        .order_by(rollup.start_us)
    )
    return [(int(start), int(held), int(before)) for start, held, before in rows]


def _tell(
    connection: Connection,
    meter: Row[tuple[object, ...]],
    start_us: int,
    *,
    total: int,
    told: int,
) -> bool:
    """Queue a difference and note it, together; false where another did meanwhile."""
    key = {"tenant_id": meter.tenant_id, "measure": meter.measure, "start_us": start_us}
    body = {
        "customer": {"object": "customer", "of": meter.tenant_id},
        "event": meter.event_name,
        "value": total - told,
        "told": told,
        "at_s": start_us // 10**6,
    }
    subject = f"{meter.tenant_id}/{meter.measure}/{start_us // 10**6}/{told}"
    if not outbox.enqueue(connection, meter.tenant_id, "meter", subject, body):
        return False
    if told:
        connection.execute(
            update(payment_metered)
            .where(*(payment_metered.c[name] == value for name, value in key.items()))
            .values(told=total)
        )
    else:
        connection.execute(insert(payment_metered).values(**key, told=total))
    return True
