"""What serving costs, at rates that the operator states; without them nothing is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, TypeAlias

import msgspec
from litestar import Response, get
from litestar.exceptions import ValidationException
from litestar.params import QueryParameter

from billing.economics import costs, roi
from billing.economics.costs import Economics
from billing.economics.margins import Rates
from billing.errors import InvalidAmount, InvalidEconomics, InvalidPeriod
from billing.money import NANO, parse_nano
from dashboards.charts import Chart, ChartKind, Series
from dashboards.injected import AHost, AViewer
from dashboards.rendering import page
from dashboards.sessions import PageRequest
from metering import clock
from metering.database import snapshot

DAY_US = 86_400 * 10**6
DAYS = 30
FLEETS = ("before", "after")
WORDS = {
    "gpus": "GPUs",
    "gpu_hour": "One GPU an hour, power apart",
    "kw_per_gpu": "Average kW of each, hosts included",
    "people": "People",
    "iteration_days": "Days from an idea to a model in service",
    "person_year": "One person a year",
    "kwh": "A kilowatt hour",
    "pue": "Power usage effectiveness of the building",
    "one_off": "The change itself, once",
    "years": "Years to look ahead",
}
SHARED = ("person_year", "kwh", "pue", "one_off", "years")

RateQuery: TypeAlias = Annotated[str | None, QueryParameter(max_length=20)]


@dataclass(frozen=True, slots=True)
class Field:
    """One input of the comparison of fleets."""

    name: str
    label: str
    value: str


@get("/economics", sync_to_thread=True)
def show_economics(  # noqa: PLR0917 -- injected by name, called by the router alone
    request: PageRequest,
    host: AHost,
    operator: AViewer,
    per_hour: RateQuery = None,
    per_kwh: RateQuery = None,
    currency: Annotated[str, QueryParameter(pattern=r"^[A-Z]{3}(?!\n)$")] = "USD",
    period: Annotated[str | None, QueryParameter(max_length=20)] = None,
) -> Response[str]:
    """Costs by concurrency and by tenant once the rates are given, and two fleets compared."""
    found = None
    if per_hour:
        now_us = clock.now_us()
        rates = Rates(currency, _rate(per_hour), _rate(per_kwh) if per_kwh else None)
        start_us = now_us - DAYS * DAY_US
        with snapshot(host.database) as connection:
            try:
                found = costs.economics(connection, rates, start_us, now_us, period or None)
            except (InvalidPeriod, InvalidEconomics) as error:
                raise ValidationException(str(error)) from None
    given = {name: value for name, value in request.query_params.items() if value}
    comparison, faults = _compared(given)
    return page(
        request,
        "operator/economics.html",
        days=DAYS,
        per_hour=per_hour or "",
        per_kwh=per_kwh or "",
        currency=currency,
        period=period or "",
        found=found,
        chart=None if found is None else steps_chart(found),
        fields={name: _fields(name, given) for name in (*FLEETS, "shared")},
        comparison=comparison,
        faults=faults,
    )


def steps_chart(found: Economics) -> Chart:
    """Measured step times beside the fitted ones."""
    return Chart(
        id="steps",
        title="Time of a step by concurrency",
        kind=ChartKind.LINES,
        unit="ms",
        category="Requests at once",
        categories=tuple(str(point.concurrency) for point in found.points),
        series=(
            Series("measured", "--chart-2", tuple(_ms(each.measured_ms) for each in found.points)),
            Series(
                "fitted",
                "--chart-3",
                tuple(_ms(each.fitted_ms) for each in found.points),
                dashed=True,
            ),
        ),
    )


def _compared(given: Mapping[str, str]) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """The comparison asked for, or what is wrong with its figures; neither before any is given."""
    document: dict[str, Any] = {name: given[name] for name in SHARED if name in given}
    for fleet in FLEETS:
        names = msgspec.structs.fields(roi.Fleet)
        document[fleet] = {
            field.name: given[f"{fleet}_{field.name}"]
            for field in names
            if f"{fleet}_{field.name}" in given
        }
    if document == {fleet: {} for fleet in FLEETS}:
        return None, ()
    try:
        return roi.to_wire(roi.answer(roi.parse(document))), ()
    except InvalidEconomics as error:
        return None, error.errors


def _fields(group: str, given: Mapping[str, str]) -> list[Field]:
    if group == "shared":
        return [Field(name, WORDS[name], given.get(name, "")) for name in SHARED]
    names = [f"{group}_{field.name}" for field in msgspec.structs.fields(roi.Fleet)]
    return [
        Field(name, WORDS[name.removeprefix(f"{group}_")], given.get(name, "")) for name in names
    ]


def _rate(text: str) -> Decimal:
    try:
        nano = parse_nano(text)
    except InvalidAmount as error:
        raise ValidationException(str(error)) from None
    if nano < 0:
        raise ValidationException("A rate is not negative.")
    return Decimal(nano) / NANO


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


HANDLERS = (show_economics,)
