"""A tenant's first page: what it has, what it spent and on what, how sure and for what energy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from litestar import Response, get
from sqlalchemy import Connection

from billing import budgets
from billing import queries as billing_queries
from billing.budgets import Standing
from billing.invoices.minor_units import stated
from billing.ledger import balances, grants
from billing.ledger.balances import Balance
from billing.ledger.grants import Grant
from billing.queries import DailyCharge, ReceiptRow
from dashboards.billing.days import FirstDay, LastDay, presets, read_days
from dashboards.charts import (
    COMPONENT_COLOURS,
    ENERGY_COLOURS,
    TIER_COLOURS,
    Chart,
    ChartKind,
    Series,
    stack,
)
from dashboards.injected import ADesk, AHost
from dashboards.ranges import DateRange
from dashboards.rendering import page, tenths
from dashboards.sessions import PageRequest
from metering import clock
from metering import queries as metering_queries
from metering.confidence import tier
from metering.database import snapshot
from metering.events import ConfidenceTier, EnergyClass
from metering.local_days import day_of
from metering.queries import Bucket, ScoreBin, UsageBucket

LATEST = 8


@dataclass(frozen=True, slots=True)
class ComponentTotal:
    """What one component came to over the whole range."""

    name: str
    amount_nano: int


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Counts over the whole range, whatever the energy class."""

    requests: int
    input_tokens: int
    output_tokens: int
    complete_units: int
    fragment_units: int
    unscored: int


@dataclass(frozen=True, slots=True)
class ClassTotal:
    """The requests of one energy class, over the whole range. Joules are null, never 0."""

    energy_class: EnergyClass
    requests: int
    shown_uj: int | None

    @property
    def mean_uj(self) -> int | None:
        """Microjoules per request, rounded down; null without joules."""
        return None if self.shown_uj is None else self.shown_uj // self.requests


@dataclass(frozen=True, slots=True)
class Overview:
    """A tenant's money and usage over a range of its own days, as read."""

    balance: Balance
    charges: Sequence[DailyCharge]
    usage: Sequence[UsageBucket]
    scores: Sequence[ScoreBin]
    grants: Sequence[Grant]
    budgets: Sequence[Standing]
    receipts: Sequence[ReceiptRow]


@get("/overview", sync_to_thread=True)
def show_overview(
    request: PageRequest,
    host: AHost,
    desk: ADesk,
    first: FirstDay = None,
    last: LastDay = None,
) -> Response[str]:
    """The tenant's money and usage over a range of its own days."""
    days = read_days(desk, first, last)
    with snapshot(host.database) as connection:
        found = read(connection, desk.tenant_id, days)
    return page(
        request,
        "billing/overview.html",
        desk=desk,
        range=days,
        presets=presets(days),
        balance=found.balance,
        grants=[lot for lot in found.grants if lot.remaining_nano],
        budgets=found.budgets,
        spend_nano=sum(charge.amount_nano for charge in found.charges),
        components=component_totals(found.charges),
        spend_chart=spend_chart(found.charges, days, desk.currency),
        usage=usage_totals(found.usage),
        energy=class_totals(found.usage),
        grid=host.grid,
        energy_chart=energy_chart(found.usage, days),
        scores_chart=scores_chart(found.scores),
        receipts=found.receipts,
    )


def read(connection: Connection, tenant_id: str, days: DateRange) -> Overview:
    """All that the page shows, from one snapshot. Changes nothing."""
    span = (tenant_id, days.start_us, days.end_us)
    return Overview(
        balances.balance(connection, tenant_id),
        billing_queries.charges(connection, *span, zone=days.zone),
        metering_queries.usage(connection, *span, Bucket.DAY, zone=days.zone),
        metering_queries.confidence_histogram(connection, *span),
        grants.listing(connection, tenant_id),
        budgets.standings(connection, tenant_id, clock.now_us()),
        billing_queries.receipt_rows(
            connection, tenant_id, start_us=days.start_us, end_us=days.end_us, limit=LATEST
        ),
    )


def component_totals(charges: Iterable[DailyCharge]) -> list[ComponentTotal]:
    """Charges summed over days, in the order in which the charts stack them."""
    totals: Counter[str] = Counter()
    for charge in charges:
        totals[charge.component] += charge.amount_nano
    order = list(COMPONENT_COLOURS)
    ranked = sorted(
        totals, key=lambda name: (order.index(name) if name in order else len(order), name)
    )
    return [ComponentTotal(name, totals[name]) for name in ranked]


def spend_chart(charges: Iterable[DailyCharge], days: DateRange, currency: str) -> Chart:
    """What each day came to, by component."""
    categories = tuple(day.isoformat() for day in days.days())
    return Chart(
        id="spend",
        title="Spend by day and component",
        kind=ChartKind.STACKED_BARS,
        unit=currency,
        category="Day",
        categories=categories,
        series=stack(
            [
                (
                    charge.day.isoformat(),
                    charge.component,
                    "".join(stated(charge.amount_nano, currency)),
                )
                for charge in charges
            ],
            categories,
            COMPONENT_COLOURS,
        ),
    )


def usage_totals(usage: Sequence[UsageBucket]) -> UsageTotals:
    """Counts summed over days; joules are left out, for classes are never added up."""
    return UsageTotals(
        requests=sum(bucket.requests for bucket in usage),
        input_tokens=sum(bucket.input_tokens for bucket in usage),
        output_tokens=sum(bucket.output_tokens for bucket in usage),
        complete_units=sum(bucket.complete_units for bucket in usage),
        fragment_units=sum(bucket.fragment_units for bucket in usage),
        unscored=sum(bucket.unscored for bucket in usage),
    )


def class_totals(usage: Iterable[UsageBucket]) -> list[ClassTotal]:
    """Requests and joules summed over days, class by class."""
    counts: Counter[EnergyClass] = Counter()
    joules: Counter[EnergyClass] = Counter()
    for bucket in usage:
        for share in bucket.energy:
            counts[share.energy_class] += share.requests
            joules[share.energy_class] += share.shown_uj or 0
    return [
        ClassTotal(name, count, None if name is EnergyClass.UNAVAILABLE else joules[name])
        for name, count in sorted(counts.items())
    ]


def energy_chart(usage: Iterable[UsageBucket], days: DateRange) -> Chart:
    """Joules of each day, the classes side by side."""
    categories = tuple(day.isoformat() for day in days.days())
    rows = [
        (day_of(bucket.start_us, days.zone).isoformat(), share.energy_class, share.shown_uj)
        for bucket in usage
        for share in bucket.energy
    ]
    return Chart(
        id="energy",
        title="Energy by day and class",
        kind=ChartKind.GROUPED_BARS,
        unit="J",
        category="Day",
        categories=categories,
        series=stack(
            [(day, name, tenths(shown_uj)) for day, name, shown_uj in rows if shown_uj is not None],
            categories,
            ENERGY_COLOURS,
        ),
    )


def scores_chart(bins: Sequence[ScoreBin]) -> Chart:
    """How many requests fell into each bin of the score, coloured by the tier it belongs to."""
    return Chart(
        id="scores",
        title="Answers by confidence score",
        kind=ChartKind.STACKED_BARS,
        unit="requests",
        category="Score",
        categories=tuple(f"{each.low} to {each.high}" for each in bins),
        series=tuple(
            Series(
                label=band.value,
                colour=TIER_COLOURS[band],
                values=tuple(
                    str(each.requests) if each.requests and tier(each.low) is band else None
                    for each in bins
                ),
            )
            for band in ConfidenceTier
            if any(each.requests and tier(each.low) is band for each in bins)
        ),
    )


HANDLERS = (show_overview,)
