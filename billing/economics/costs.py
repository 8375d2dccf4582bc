"""What requests cost the operator, by concurrency and by tenant, at the rates it states.

Time is measured, from the blocks on record; rates are the operator's. What was not measured is
null. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from billing.currencies import CODES
from billing.economics import model
from billing.economics.model import Fit, Level
from billing.errors import InvalidEconomics
from billing.money import NANO
from billing.tables import adjustments, rated_lines
from metering.events import EnergyClass
from metering.ingestion.outside import ROUTE as OUTSIDE
from metering.queries import StepRun, step_runs
from metering.tables import request_summaries, requests, tenants

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
MS_PER_HOUR = 3_600_000
UJ_PER_KWH = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Rates:
    """What the operator pays: for its machine by the hour, power apart, and for power."""

    currency: str
    per_hour: Decimal
    per_kwh: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Usual:
    """What a request of this installation came to, on average; joules by class."""

    requests: int
    blocks: float
    tokens: float
    units: float
    joules: Mapping[EnergyClass, float]  # of the class's own requests


@dataclass(frozen=True, slots=True)
class CostPoint:
    """What it costs with so many requests at once. Null: neither measured nor fitted."""

    concurrency: int
    measured_ms: float | None
    fitted_ms: float | None
    is_extrapolated: bool
    per_step: float | None
    per_request: float | None
    per_token: float | None
    per_unit: float | None
    per_joule: Mapping[EnergyClass, float]


@dataclass(frozen=True, slots=True)
class Margin:
    """What a tenant was charged, beside what its requests took.

    Machine time is apportioned by blocks, from the steps on record; time in which nothing ran is
    nobody's here.
    """

    tenant_id: str
    name: str
    currency: str
    requests: int
    unmetered: int  # of them, those with output whose joules nobody could read
    charged_nano: int  # adjustments included
    joules: Mapping[EnergyClass, float]
    energy_cost: float | None  # of the joules of our own meters
    machine_hours: float | None
    machine_cost: float | None
    margin: float | None


@dataclass(frozen=True, slots=True)
class Economics:
    """The whole answer. `no_fit` says what is missing where there is no fit."""

    rates: Rates
    start_us: int
    end_us: int
    levels: tuple[Level, ...]
    fit: Fit | None
    no_fit: str | None
    usual: Usual | None
    points: tuple[CostPoint, ...]
    margins: tuple[Margin, ...]


def economics(connection: Connection, rates: Rates, start_us: int, end_us: int) -> Economics:
    """Costs at these rates: of requests that ended in [start, end), on the steps last recorded.

    Raises InvalidEconomics for rates in no currency.
    """
    if rates.currency not in CODES:
        raise InvalidEconomics([f"currency: {rates.currency} is no currency of ISO 4217"])
    runs = step_runs(connection)
    found = model.fit(runs)
    measured = model.levels(runs)
    usual = _usual(connection, start_us, end_us)
    return Economics(
        rates=rates,
        start_us=start_us,
        end_us=end_us,
        levels=tuple(measured),
        fit=found,
        no_fit=model.why_not(runs),
        usual=usual,
        points=tuple(_points(rates, measured, found, usual)),
        margins=tuple(_margins(connection, rates, start_us, end_us, _block_hours(runs))),
    )


def _points(
    rates: Rates, measured: Sequence[Level], found: Fit | None, usual: Usual | None
) -> list[CostPoint]:
    by_level = {level.concurrency: level.step_ms for level in measured}
    wanted = sorted({*by_level, *(CONCURRENCIES if found else ())})
    return [_point(rates, each, by_level.get(each), found, usual) for each in wanted]


def _point(
    rates: Rates,
    concurrency: int,
    measured_ms: float | None,
    found: Fit | None,
    usual: Usual | None,
) -> CostPoint:
    fitted_ms = None if found is None else found.step_ms(concurrency)
    step_ms = measured_ms if fitted_ms is None else fitted_ms
    per_step = None if step_ms is None else float(rates.per_hour) * step_ms / MS_PER_HOUR
    per_request = (
        None if per_step is None or usual is None else per_step * usual.blocks / concurrency
    )

    def shared(among: float | None) -> float | None:
        return None if per_request is None or not among else per_request / among

    joules = {} if usual is None else usual.joules
    return CostPoint(
        concurrency=concurrency,
        measured_ms=measured_ms,
        fitted_ms=fitted_ms,
        is_extrapolated=found is not None and not found.covers(concurrency),
        per_step=per_step,
        per_request=per_request,
        per_token=shared(None if usual is None else usual.tokens),
        per_unit=shared(None if usual is None else usual.units),
        per_joule={
            kind: each for kind, value in joules.items() if (each := shared(value)) is not None
        },
    )


def _block_hours(runs: Sequence[StepRun]) -> float | None:
    """Machine hours of one block: each step's time divided among the requests that it served."""
    blocks = sum(run.steps * run.concurrency for run in runs)
    return sum(run.busy_ns for run in runs) / blocks / 3.6e12 if blocks else None


def _usual(connection: Connection, start_us: int, end_us: int) -> Usual | None:
    summary = request_summaries.c
    rows = connection.execute(
        _own(
            select(
                summary.energy_class,
                func.count(),
                func.sum(summary.blocks),
                func.sum(summary.output_tokens),
                func.sum(summary.complete_units + summary.fragment_units),
                func.sum(summary.energy_uj),
            ),
            start_us,
            end_us,
        )
        .where(summary.output_tokens > 0, requests.c.route != OUTSIDE)
        .group_by(summary.energy_class)
    ).all()
    count = sum(row[1] for row in rows)
    if not count:
        return None
    return Usual(
        requests=count,
        blocks=sum(int(row[2]) for row in rows) / count,
        tokens=sum(int(row[3]) for row in rows) / count,
        units=sum(int(row[4]) for row in rows) / count,
        joules={
            EnergyClass(row[0]): int(row[5]) / 1e6 / row[1] for row in rows if row[5] is not None
        },
    )


def _margins(
    connection: Connection, rates: Rates, start_us: int, end_us: int, block_hours: float | None
) -> list[Margin]:
    charged = _charged(connection, start_us, end_us)
    summary = request_summaries.c
    own_blocks = case((requests.c.route == OUTSIDE, 0), else_=summary.blocks)
    without = (summary.output_tokens > 0) & summary.energy_uj.is_(None)
    rows = connection.execute(
        _own(
            select(
                summary.tenant_id,
                tenants.c.name,
                tenants.c.currency,
                summary.energy_class,
                func.count().label("requests"),
                func.sum(own_blocks).label("blocks"),
                func.sum(case((without, 1), else_=0)).label("unmetered"),
                func.sum(summary.energy_uj).label("energy_uj"),
            ),
            start_us,
            end_us,
        )
        .join(tenants, tenants.c.id == summary.tenant_id)
        .group_by(summary.tenant_id, tenants.c.name, tenants.c.currency, summary.energy_class)
        .order_by(summary.tenant_id, summary.energy_class)
    )
    by_tenant: dict[str, list[Mapping[Any, Any]]] = {}
    for row in rows.mappings():
        by_tenant.setdefault(row["tenant_id"], []).append(row)
    return [
        _margin(rates, each, charged.get(tenant_id, 0), block_hours)
        for tenant_id, each in by_tenant.items()
    ]


def _margin(
    rates: Rates,
    rows: Sequence[Mapping[Any, Any]],
    charged_nano: int,
    block_hours: float | None,
) -> Margin:
    uj = {
        EnergyClass(row["energy_class"]): int(row["energy_uj"])
        for row in rows
        if row["energy_uj"] is not None
    }
    # What another engine reported is on another's bill.
    own = [each for kind, each in uj.items() if kind is not EnergyClass.REPORTED]
    energy = (
        None if rates.per_kwh is None or not own else sum(own) / UJ_PER_KWH * float(rates.per_kwh)
    )
    hours = None if block_hours is None else sum(int(row["blocks"]) for row in rows) * block_hours
    machine = None if hours is None else hours * float(rates.per_hour)
    margin = None
    if rows[0]["currency"] == rates.currency and machine is not None and energy is not None:
        margin = charged_nano / NANO - machine - energy
    return Margin(
        tenant_id=rows[0]["tenant_id"],
        name=rows[0]["name"],
        currency=rows[0]["currency"],
        requests=sum(row["requests"] for row in rows),
        unmetered=sum(int(row["unmetered"]) for row in rows),
        charged_nano=charged_nano,
        joules={kind: each / 1e6 for kind, each in uj.items()},
        energy_cost=energy,
        machine_hours=hours,
        machine_cost=machine,
        margin=margin,
    )


def _charged(connection: Connection, start_us: int, end_us: int) -> dict[str, int]:
    """What requests that ended then were charged, less what was given back of it since."""
    line, made, summary = rated_lines.c, adjustments.c, request_summaries.c
    lines = (
        select(line.tenant_id, func.sum(line.amount_nano))
        .where(line.event_time_us >= start_us, line.event_time_us < end_us)
        .group_by(line.tenant_id)
    )
    given_back = (
        select(made.tenant_id, func.sum(made.amount_nano))
        .join(request_summaries, summary.request_id == made.request_id)
        .where(summary.ended_at_us >= start_us, summary.ended_at_us < end_us)
        .group_by(made.tenant_id)
    )
    totals: dict[str, int] = {}
    for query in (lines, given_back):
        for tenant_id, amount in connection.execute(query):
            totals[tenant_id] = totals.get(tenant_id, 0) + int(amount)
    return totals


def _own(query: Select[Any], start_us: int, end_us: int) -> Select[Any]:
    """Of requests that ended in the range, test mode left out: nobody pays for those."""
    ended = request_summaries.c.ended_at_us
    return (
        query.select_from(request_summaries)
        .join(requests, requests.c.id == request_summaries.c.request_id)
        .where(ended >= start_us, ended < end_us, requests.c.test_mode.is_(False))
    )
