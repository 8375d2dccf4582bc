"""Where the meter's energy went, for the operator."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, func, select

from engine.records import EngineInfo
from metering.events import EnergyClass, EnergySummary, RequestStatus
from metering.tables import meter_windows, request_summaries, requests

PARTS = ("meter_uj", "requests_uj", "idle_uj", "overhead_uj", "external_uj", "unattributed_uj")


class EnergyUse(msgspec.Struct, frozen=True):
    """What one device's meter moved by, and its parts, which add up to it. Microjoules."""

    energy_class: EnergyClass
    source: str
    device: str
    windows: int
    meter_uj: int
    requests_uj: int
    idle_uj: int
    overhead_uj: int
    external_uj: int
    unattributed_uj: int


def energy_windows(
    connection: Connection, since_us: int, until_us: int | None = None
) -> list[EnergyUse]:
    """Energy of the windows recorded in `[since, until)`, by class, source and device."""
    column = meter_windows.c
    query = (
        select(
            column.energy_class,
            column.source,
            column.device,
            func.count(),
            *(func.sum(column[part]) for part in PARTS),
        )
        .where(column.recorded_at_us >= since_us)
        .group_by(column.energy_class, column.source, column.device)
        .order_by(column.energy_class, column.source, column.device)
    )
    if until_us is not None:
        query = query.where(column.recorded_at_us < until_us)
    return [
        EnergyUse(EnergyClass(energy_class), source, device, *(int(value) for value in sums))
        for energy_class, source, device, *sums in connection.execute(query)
    ]


class _Taken(msgspec.Struct):
    """What is read of a summary."""

    energy: EnergySummary
    output_tokens: int


class RanOn(msgspec.Struct, frozen=True):
    """What a completed request took, and the engine that it was admitted for."""

    engine: EngineInfo
    energy: EnergySummary
    output_tokens: int


def ran_on(connection: Connection, replica: str, newest: int) -> list[RanOn]:
    """The newest requests admitted to a replica that completed, in the order of their ends.

    What another release wrote in another shape is left out.
    """
    rows = connection.execute(
        select(requests.c.engine, request_summaries.c.body, request_summaries.c.ended_at_us)
        .join(request_summaries, request_summaries.c.request_id == requests.c.id)
        .where(
            requests.c.replica == replica,
            requests.c.status == RequestStatus.COMPLETED,
            requests.c.engine.is_not(None),
        )
        .order_by(requests.c.id.desc())
        .limit(newest)
    ).all()
    found = []
    for row in sorted(rows, key=lambda row: row.ended_at_us):
        try:
            taken = msgspec.json.decode(row.body, type=_Taken)
            engine = msgspec.json.decode(row.engine, type=EngineInfo)
        except msgspec.ValidationError:
            continue  # as another release wrote it: nothing that this engine took
        found.append(RanOn(engine, taken.energy, taken.output_tokens))
    return found
