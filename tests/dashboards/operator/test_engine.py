"""The engine page's figures."""

from __future__ import annotations

from dashboards.charts import ChartKind
from dashboards.operator import engine
from engine.records import DraftCounters
from metering.events import EnergyClass
from metering.queries import EnergyUse, HealthPoint


def test_rates_of_nothing_do_not_exist() -> None:
    none, some = DraftCounters(), DraftCounters(3, 9, 12, 10, 15, 6)
    assert (none.mean_drafted_depth, none.node_efficiency, none.draft_hit_rate) == (None,) * 3
    assert (some.mean_drafted_depth, some.node_efficiency, some.draft_hit_rate) == (
        10 / 3,
        0.4,
        0.6,
    )


def test_a_stretch_in_which_nothing_was_drafted_is_a_gap_in_the_hit_rate() -> None:
    points = [HealthPoint(0, 3, 30, 0.7512, 2.0), HealthPoint(120, 1, 4, None, 1.0)]
    chart = engine.hit_rate_chart(points, range(0, 180, 60))
    rate, bound = chart.series
    assert rate.values == ("75.1", None, None)
    assert bound.values == ("70.0",) * 3
    assert bound.dashed
    assert not chart.empty


def test_a_chart_with_nothing_but_its_bound_is_empty() -> None:
    assert engine.hit_rate_chart([], range(0, 180, 60)).empty


def test_the_parts_of_each_meter_are_stacked_and_meters_stand_apart() -> None:
    uses = [
        EnergyUse(kind, "cpu_time", device, 1, 2_000_000, 900_000, 600_000, 300_000, 200_000, 0)
        for kind, device in ((EnergyClass.MEASURED, "GPU-1"), (EnergyClass.ESTIMATED, "pid:2"))
    ]
    chart = engine.energy_chart(uses)
    assert chart.kind is ChartKind.STACKED_ROWS
    assert chart.categories == ("measured, GPU-1", "estimated, pid:2")
    values = {series.label: series.values for series in chart.series}
    assert values["requests"] == ("0.9", "0.9")
    assert values["unattributed"] == ("0.0", "0.0")
