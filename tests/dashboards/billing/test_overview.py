"""The overview's figures: summed where they may be, and kept apart where they may not."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from billing.queries import DailyCharge
from dashboards.billing import overview
from dashboards.charts import ChartKind
from dashboards.ranges import DateRange
from metering.events import EnergyClass
from metering.queries import ClassEnergy, ScoreBin, UsageBucket

BERLIN = ZoneInfo("Europe/Berlin")
DAYS = DateRange(date(2026, 3, 28), date(2026, 3, 30), BERLIN)


def charge(day: int, component: str, amount_nano: int) -> DailyCharge:
    return DailyCharge(date(2026, 3, day), component, amount_nano, "USD")


def bucket(day: int, *energy: ClassEnergy) -> UsageBucket:
    start = datetime(2026, 3, day, tzinfo=BERLIN).astimezone(UTC)
    return UsageBucket(
        start_us=int(start.timestamp()) * 1_000_000,
        requests=sum(share.requests for share in energy),
        input_tokens=10,
        output_tokens=20,
        complete_units=3,
        fragment_units=1,
        information_ubits=0,
        unscored=1,
        energy=energy,
    )


CHARGES = [
    charge(28, "output", 2_000_000_000),
    charge(28, "input", 1_000_000_000),
    charge(30, "output", 500_000_001),
    charge(30, "adjustment", -250_000_000),
    charge(30, "write_off", -1),
]
USAGE = [
    bucket(
        28,
        ClassEnergy(EnergyClass.MEASURED, 2, 1_200_000, 1_234_567),
        ClassEnergy(EnergyClass.ESTIMATED, 1, 700_000, 777_777),
    ),
    bucket(
        30,
        ClassEnergy(EnergyClass.MEASURED, 1, 300_000, 311_111),
        ClassEnergy(EnergyClass.UNAVAILABLE, 4, None, None),
    ),
]


def test_components_are_summed_exactly_in_the_charts_order_and_strangers_last() -> None:
    assert [(each.name, each.amount_nano) for each in overview.component_totals(CHARGES)] == [
        ("input", 1_000_000_000),
        ("output", 2_500_000_001),
        ("adjustment", -250_000_000),
        ("write_off", -1),
    ]


def test_the_spend_chart_has_every_day_and_a_gap_where_nothing_was_charged() -> None:
    chart = overview.spend_chart(CHARGES, DAYS, "USD")
    assert chart.categories == ("2026-03-28", "2026-03-29", "2026-03-30")
    values = {series.label: series.values for series in chart.series}
    assert values["output"] == ("2.00", None, "0.500000001")
    assert values["adjustment"] == (None, None, "-0.25")


def test_joules_are_summed_within_a_class_and_never_across() -> None:
    totals = {each.energy_class: each for each in overview.class_totals(USAGE)}
    assert totals[EnergyClass.MEASURED].shown_uj == 1_500_000
    assert totals[EnergyClass.MEASURED].mean_uj == 500_000
    assert totals[EnergyClass.ESTIMATED].shown_uj == 700_000
    assert totals[EnergyClass.UNAVAILABLE].requests == 4
    assert totals[EnergyClass.UNAVAILABLE].shown_uj is None
    assert totals[EnergyClass.UNAVAILABLE].mean_uj is None


def test_the_energy_chart_sets_classes_side_by_side_on_the_tenants_days() -> None:
    chart = overview.energy_chart(USAGE, DAYS)
    assert chart.kind is ChartKind.GROUPED_BARS
    assert {series.label: series.values for series in chart.series} == {
        "measured": ("1.2", None, "0.3"),
        "estimated": ("0.7", None, None),
    }


def test_counts_are_summed_whatever_the_class() -> None:
    totals = overview.usage_totals(USAGE)
    assert (totals.requests, totals.input_tokens, totals.output_tokens) == (8, 20, 40)
    assert (totals.complete_units, totals.fragment_units, totals.unscored) == (6, 2, 2)


def test_a_score_bin_is_coloured_by_the_tier_it_lies_in() -> None:
    bins = [
        ScoreBin("0.65", "0.70", 1),
        ScoreBin("0.70", "0.75", 2),
        ScoreBin("0.90", "0.95", 0),
        ScoreBin("0.95", "1.00", 3),
    ]
    chart = overview.scores_chart(bins)
    assert {series.label: series.values for series in chart.series} == {
        "standard": (None, None, None, "3"),
        "reduced": (None, "2", None, None),
        "review": ("1", None, None, None),
    }


def test_charts_of_nothing_are_empty() -> None:
    assert overview.spend_chart([], DAYS, "USD").empty
    assert overview.energy_chart([], DAYS).empty
    assert overview.scores_chart([ScoreBin("0.00", "1.00", 0)]).empty
