"""What requests cost the operator, by concurrency, at the rates it states.

Time is measured, from the blocks on record; rates are the operator's. What was not measured is
null. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from billing.currencies import CODES
from billing.economics import margins, model
from billing.economics.margins import Margin, Rates, ended_in
from billing.economics.model import Fit, Level
from billing.errors import InvalidEconomics
from metering.events import EnergyClass
from metering.ingestion.outside import ROUTE as OUTSIDE
from metering.queries import step_runs
from metering.tables import request_summaries, requests

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
MS_PER_HOUR = 3_600_000


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
class Economics:
    """The whole answer. `no_fit` says what is missing where there is no fit; `period` is the month
    of the margins, null where they are of the same time as the rest.
    """

    rates: Rates
    period: str | None
    start_us: int
    end_us: int
    levels: tuple[Level, ...]
    fit: Fit | None
    no_fit: str | None
    usual: Usual | None
    points: tuple[CostPoint, ...]
    margins: tuple[Margin, ...]


def economics(
    connection: Connection, rates: Rates, start_us: int, end_us: int, period: str | None = None
) -> Economics:
    """Costs at these rates: of requests that ended in [start, end), on the steps last recorded.

    Margins are of the same time, or of a month. Raises InvalidEconomics for rates in no currency,
    or InvalidPeriod.
    """
    if rates.currency not in CODES:
        raise InvalidEconomics([f"currency: {rates.currency} is no currency of ISO 4217"])
    runs = step_runs(connection)
    found = model.fit(runs)
    measured = model.levels(runs)
    usual = _usual(connection, start_us, end_us)
    block_hours = margins.block_hours(runs)
    if period is None:
        shown = margins.of_range(connection, rates, start_us, end_us, block_hours)
    else:
        shown = margins.of_month(connection, rates, period, block_hours)
    return Economics(
        rates=rates,
        period=period,
        start_us=start_us,
        end_us=end_us,
        levels=tuple(measured),
        fit=found,
        no_fit=model.why_not(runs),
        usual=usual,
        points=tuple(_points(rates, measured, found, usual)),
        margins=tuple(shown),
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


def _usual(connection: Connection, start_us: int, end_us: int) -> Usual | None:
    summary = request_summaries.c
    rows = connection.execute(
        ended_in(
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
