"""What each tenant was charged, beside what its requests took of machine and energy.

Machine time is apportioned by blocks, from the steps on record; time in which nothing ran is
nobody's here. What was not measured or stated is null. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from billing import periods
from billing.invoices import closed_periods, lines, usage
from billing.money import NANO
from billing.periods import Period
from billing.tables import adjustments, rated_lines
from metering.events import EnergyClass
from metering.ingestion.outside import ROUTE as OUTSIDE
from metering.queries import StepRun
from metering.tables import request_summaries, requests, tenants

UJ_PER_KWH = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Rates:
    """What the operator pays: for its machine by the hour, power apart, and for power."""

    currency: str
    per_hour: Decimal
    per_kwh: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Margin:
    """One tenant's. A month's prices are null where the time is no month."""

    tenant_id: str
    name: str
    currency: str
    requests: int
    unmetered: int  # of them, those with output whose joules nobody could read
    charged_nano: int  # adjustments and the month's prices included
    month_prices_nano: int | None
    joules: Mapping[EnergyClass, float]
    energy_cost: float | None  # of the joules of our own meters
    machine_hours: float | None
    machine_cost: float | None
    margin: float | None


@dataclass(frozen=True, slots=True)
class _Tenant:
    id: str
    name: str
    currency: str


def block_hours(runs: Sequence[StepRun]) -> float | None:
    """Machine hours of one block: each step's time divided among the requests that it served."""
    blocks = sum(run.steps * run.concurrency for run in runs)
    return sum(run.busy_ns for run in runs) / blocks / 3.6e12 if blocks else None


def of_range(
    connection: Connection, rates: Rates, start_us: int, end_us: int, hours: float | None
) -> list[Margin]:
    """Of every tenant that requests ended of in [start, end); prices of months are left out."""
    charged = _charged(connection, start_us, end_us)
    summary = request_summaries.c
    own_blocks = case((requests.c.route == OUTSIDE, 0), else_=summary.blocks)
    without = (summary.output_tokens > 0) & summary.energy_uj.is_(None)
    rows = connection.execute(
        ended_in(
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
    by_tenant: dict[_Tenant, list[Mapping[Any, Any]]] = {}
    for row in rows.mappings():
        tenant = _Tenant(row["tenant_id"], row["name"], row["currency"])
        by_tenant.setdefault(tenant, []).append(row)
    return [
        _margin(rates, tenant, each, charged.get(tenant.id, 0), hours)
        for tenant, each in by_tenant.items()
    ]


def of_month(connection: Connection, rates: Rates, label: str, hours: float | None) -> list[Margin]:
    """Of every tenant that used or is charged anything in its own month of this label.

    The month's prices are those that an invoice would have now; raises InvalidPeriod.
    """
    periods.month(label, "UTC")  # a wrong label is wrong where there are no tenants, too
    by_span: dict[tuple[int, int], dict[str, tuple[_Tenant, int]]] = {}
    columns = (tenants.c.id, tenants.c.name, tenants.c.currency, tenants.c.time_zone)
    for *tenant, zone in connection.execute(select(*columns)).all():
        period = closed_periods.span(connection, tenant[0], label, zone)
        prices = _month_prices(connection, tenant[0], period)
        alike = by_span.setdefault((period.start_us, period.end_us), {})
        alike[tenant[0]] = (_Tenant(*tenant), prices)
    found = []
    for span, alike in by_span.items():
        shown = {each.tenant_id: each for each in of_range(connection, rates, *span, hours)}
        for tenant_id, (owner, prices) in alike.items():
            used = shown.get(tenant_id)
            if used is None and prices:
                used = _margin(rates, owner, [], 0, hours)
            if used is not None:
                found.append(_with_month(used, rates, prices))
    return sorted(found, key=lambda each: each.tenant_id)


def ended_in(query: Select[Any], start_us: int, end_us: int) -> Select[Any]:
    """Of requests that ended in the range, test mode left out: nobody pays for those."""
    ended = request_summaries.c.ended_at_us
    return (
        query.select_from(request_summaries)
        .join(requests, requests.c.id == request_summaries.c.request_id)
        .where(ended >= start_us, ended < end_us, requests.c.test_mode.is_(False))
    )


def _month_prices(connection: Connection, tenant_id: str, period: Period) -> int:
    held = lines.held_lines(connection, tenant_id, period, usage.projected_groups)
    return sum(line.amount_nano for line in held if line.kind == "period")


def _with_month(found: Margin, rates: Rates, prices_nano: int) -> Margin:
    charged = found.charged_nano + prices_nano
    margin = _less(rates, found.currency, charged, found.machine_cost, found.energy_cost)
    return replace(found, charged_nano=charged, month_prices_nano=prices_nano, margin=margin)


def _margin(
    rates: Rates,
    tenant: _Tenant,
    rows: Sequence[Mapping[Any, Any]],
    charged_nano: int,
    hours: float | None,
) -> Margin:
    uj = {
        EnergyClass(row["energy_class"]): int(row["energy_uj"])
        for row in rows
        if row["energy_uj"] is not None
    }
    # What another engine reported is on another's bill.
    own = [each for kind, each in uj.items() if kind is not EnergyClass.REPORTED]
    is_known = rates.per_kwh is not None and (own or not rows)
    energy = sum(own) / UJ_PER_KWH * float(rates.per_kwh or 0) if is_known else None
    blocks = sum(int(row["blocks"]) for row in rows)
    machine_hours = (None if rows else 0.0) if hours is None else blocks * hours
    machine = None if machine_hours is None else machine_hours * float(rates.per_hour)
    return Margin(
        tenant_id=tenant.id,
        name=tenant.name,
        currency=tenant.currency,
        requests=sum(row["requests"] for row in rows),
        unmetered=sum(int(row["unmetered"]) for row in rows),
        charged_nano=charged_nano,
        month_prices_nano=None,
        joules={kind: each / 1e6 for kind, each in uj.items()},
        energy_cost=energy,
        machine_hours=machine_hours,
        machine_cost=machine,
        margin=_less(rates, tenant.currency, charged_nano, machine, energy),
    )


def _less(
    rates: Rates, currency: str, charged_nano: int, machine: float | None, energy: float | None
) -> float | None:
    if currency != rates.currency or machine is None or energy is None:
        return None
    return charged_nano / NANO - machine - energy


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
