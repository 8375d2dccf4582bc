"""`/admin/economics`: what serving costs the operator, and whether another fleet would pay."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from sqlalchemy import Engine as Database

from api.auth import Scope, requires
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, Unauthenticated
from api.invoices.schemas import MONTH
from api.schemas import to_time
from api.usage import ranges
from api.usage.ranges import EndQuery, StartQuery
from billing.economics import costs, roi
from billing.economics.costs import CostPoint, Economics
from billing.economics.margins import Margin, Rates
from billing.errors import InvalidEconomics, InvalidPeriod
from billing.money import format_nano
from metering.database import snapshot
from metering.queries import Bucket

_RATE = r"^[0-9]{1,9}(\.[0-9]{1,9})?(?!\n)$"
PerHourQuery = Annotated[
    str, QueryParameter(pattern=_RATE, description="What the machine costs an hour, power apart")
]
PerKwhQuery = Annotated[
    str | None, QueryParameter(pattern=_RATE, description="What a kilowatt hour costs")
]
CurrencyQuery = Annotated[
    str, QueryParameter(pattern=r"^[A-Z]{3}(?!\n)$", description="Of both rates, ISO 4217")
]
PeriodQuery = Annotated[
    str | None,
    QueryParameter(
        pattern=MONTH, description="Margins of this month, such as 2026-11, its prices included"
    ),
]
PLACES = 12


class EstimateView(msgspec.Struct, frozen=True):
    """A fitted figure with its 95 % interval."""

    value: str
    low: str
    high: str


class FitView(msgspec.Struct, frozen=True):
    """The cost floor as fitted: a step takes `block_ms * (1 + alpha * log2(concurrency))`."""

    block_ms: EstimateView
    alpha: EstimateView
    r_squared: str | None
    runs: int
    concurrency_min: int
    concurrency_max: int


class LevelView(msgspec.Struct, frozen=True):
    """What was measured with so many requests at once."""

    concurrency: int
    runs: int
    steps: int
    step_ms: str
    tokens_per_step: str


class UsualView(msgspec.Struct, frozen=True):
    """What a request came to on average, joules by class."""

    requests: int
    blocks: str
    tokens: str
    units: str
    joules: dict[str, str]


class CostView(msgspec.Struct, frozen=True):
    """Machine cost with so many requests at once; null where nothing was measured or fitted.

    `is_extrapolated` says that so many at once were never measured.
    """

    concurrency: int
    measured_ms: str | None
    fitted_ms: str | None
    is_extrapolated: bool
    per_step: str | None
    per_request: str | None
    per_token: str | None
    per_unit: str | None
    per_joule: dict[str, str]

    @classmethod
    def of(cls, point: CostPoint) -> CostView:
        """The wire's view of a point."""
        return cls(
            concurrency=point.concurrency,
            measured_ms=_text(point.measured_ms),
            fitted_ms=_text(point.fitted_ms),
            is_extrapolated=point.is_extrapolated,
            per_step=_text(point.per_step),
            per_request=_text(point.per_request),
            per_token=_text(point.per_token),
            per_unit=_text(point.per_unit),
            per_joule=_texts(point.per_joule),
        )


class MarginView(msgspec.Struct, frozen=True):
    """What a tenant was charged beside what its requests took; null where it can't be known.

    `unmetered` requests have output and no joules: their energy is missing from the cost.
    `month_prices` are part of `charged`, and null unless margins of a month were asked for.
    """

    tenant_id: str
    name: str
    currency: str
    requests: int
    unmetered: int
    charged: str
    month_prices: str | None
    joules: dict[str, str]
    energy_cost: str | None
    machine_hours: str | None
    machine_cost: str | None
    margin: str | None

    @classmethod
    def of(cls, margin: Margin) -> MarginView:
        """The wire's view of a margin."""
        return cls(
            tenant_id=margin.tenant_id,
            name=margin.name,
            currency=margin.currency,
            requests=margin.requests,
            unmetered=margin.unmetered,
            charged=format_nano(margin.charged_nano),
            month_prices=(
                None if margin.month_prices_nano is None else format_nano(margin.month_prices_nano)
            ),
            joules=_texts(margin.joules),
            energy_cost=_text(margin.energy_cost),
            machine_hours=_text(margin.machine_hours),
            machine_cost=_text(margin.machine_cost),
            margin=_text(margin.margin),
        )


class EconomicsView(msgspec.Struct, frozen=True):
    """Estimates to decide by: nothing of it is charged. `no_fit` says why there is none.

    Margins are of `period`, each tenant's own month, or else of the same time as the rest.
    """

    currency: str
    per_hour: str
    per_kwh: str | None
    start: dt.datetime
    end: dt.datetime
    period: str | None
    levels: list[LevelView]
    fit: FitView | None
    no_fit: str | None
    usual: UsualView | None
    costs: list[CostView]
    margins: list[MarginView]

    @classmethod
    def of(cls, found: Economics) -> EconomicsView:
        """The wire's view of the whole answer."""
        return cls(
            currency=found.rates.currency,
            per_hour=str(found.rates.per_hour),
            per_kwh=None if found.rates.per_kwh is None else str(found.rates.per_kwh),
            start=to_time(found.start_us),
            end=to_time(found.end_us),
            period=found.period,
            levels=[
                LevelView(
                    level.concurrency,
                    level.runs,
                    level.steps,
                    _written(level.step_ms),
                    _written(level.tokens_per_step),
                )
                for level in found.levels
            ],
            fit=_fit(found),
            no_fit=found.no_fit,
            usual=_usual(found),
            costs=[CostView.of(point) for point in found.points],
            margins=[MarginView.of(margin) for margin in found.margins],
        )


@get(
    "/economics",
    guards=[requires(Scope.ADMINISTER)],
    summary="Read what serving costs",
    responses=documented(
        InvalidParameter, InvalidEconomics, InvalidPeriod, Unauthenticated, Forbidden
    ),
    sync_to_thread=True,
)
def read_economics(
    *,
    database: NamedDependency[Database],
    per_hour: PerHourQuery,
    per_kwh: PerKwhQuery = None,
    currency: CurrencyQuery = "USD",
    start: StartQuery = None,
    end: EndQuery = None,
    period: PeriodQuery = None,
) -> EconomicsView:
    """Cost by concurrency, from measured steps, and each tenant's margin, at the rates given."""
    asked = ranges.read(start, end, Bucket.DAY)
    rates = Rates(currency, Decimal(per_hour), None if per_kwh is None else Decimal(per_kwh))
    with snapshot(database) as connection:
        found = costs.economics(connection, rates, asked.start_us, asked.end_us, period)
    return EconomicsView.of(found)


@post(
    "/economics/roi",
    guards=[requires(Scope.ADMINISTER)],
    summary="Compare two fleets",
    status_code=200,
    responses=documented(InvalidParameter, InvalidEconomics, Unauthenticated, Forbidden),
    sync_to_thread=False,
)
def compare_fleets(data: JSONBody[dict[str, Any]]) -> dict[str, Any]:
    """What each fleet costs a year and when changing pays, all of it from the figures given."""
    return dict(roi.to_wire(roi.answer(roi.parse(data))))


def _fit(found: Economics) -> FitView | None:
    fit = found.fit
    if fit is None:
        return None
    block, alpha = (
        EstimateView(_written(each.value), _written(each.low), _written(each.high))
        for each in (fit.block_ms, fit.alpha)
    )
    return FitView(
        block_ms=block,
        alpha=alpha,
        r_squared=_text(fit.r_squared),
        runs=fit.runs,
        concurrency_min=fit.concurrency_min,
        concurrency_max=fit.concurrency_max,
    )


def _usual(found: Economics) -> UsualView | None:
    usual = found.usual
    if usual is None:
        return None
    return UsualView(
        requests=usual.requests,
        blocks=_written(usual.blocks),
        tokens=_written(usual.tokens),
        units=_written(usual.units),
        joules=_texts(usual.joules),
    )


def _texts(values: Any) -> dict[str, str]:
    return {str(name): _written(value) for name, value in values.items()}


def _text(value: float | None) -> str | None:
    return None if value is None else _written(value)


def _written(value: float) -> str:
    """An estimate as a plain decimal: it is no amount, so it may have more places than one."""
    return f"{value:.{PLACES}f}".rstrip("0").rstrip(".")
