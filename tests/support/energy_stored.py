"""What the database holds of energy: the parts of the meter, and what was stated of a request."""

from __future__ import annotations

from sqlalchemy import Engine, func, select

from metering import event_log
from metering.bodies import EnergyBody
from metering.database import snapshot
from metering.tables import meter_windows

PARTS = ("meter_uj", "requests_uj", "idle_uj", "overhead_uj", "external_uj", "unattributed_uj")


def stored_parts(database: Engine) -> dict[str, int]:
    with snapshot(database) as connection:
        row = connection.execute(
            select(*(func.coalesce(func.sum(meter_windows.c[part]), 0) for part in PARTS))
        ).one()
    return {
        part.removesuffix("_uj"): int(value)
        for part, value in zip(PARTS, row, strict=True)
        if value
    }


def energy_events(database: Engine, request_id: str) -> list[EnergyBody]:
    with snapshot(database) as connection:
        events = event_log.of_request(connection, request_id)
    return [each for each in events if isinstance(each, EnergyBody)]
