"""Usage of a tenant by its own calendar days, and how its answers scored. Changes nothing.

Days are those of a time zone, so sums are taken per slot of a quarter of an hour, which every time
zone's offset is a multiple of, and slots are added up to days here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import date, datetime, tzinfo

from sqlalchemy import Connection, func, select

from metering.energy.provenance import SHOWN_STEP_UJ
from metering.events import ConfidenceTier, EnergyClass
from metering.tables import request_summaries

SLOT_US = 15 * 60 * 10**6
COUNTS = (
    "requests",
    "input_tokens",
    "output_tokens",
    "complete_units",
    "fragment_units",
    "shown_uj",
)


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """The requests of one energy class that ended on one day. Classes are never added up.

    `shown_uj` is what the tenant sees: each request floored to 0.1 J. Null where unavailable.
    """

    day: date
    energy_class: EnergyClass
    requests: int
    input_tokens: int
    output_tokens: int
    complete_units: int
    fragment_units: int
    shown_uj: int | None


@dataclass(frozen=True, slots=True)
class ScoreCount:
    """Requests whose score lies in [`hundredth`, `hundredth` + 1) / 100, by tier.

    Both are null for requests without a score.
    """

    hundredth: int | None
    tier: ConfidenceTier | None
    requests: int


def daily_usage(
    connection: Connection, tenant_id: str, start_us: int, end_us: int, zone: tzinfo
) -> list[DailyUsage]:
    """What a tenant used in [start, end), by day and energy class; days without any are absent."""
    summary = request_summaries.c
    rows = connection.execute(
        select(
            (summary.ended_at_us // SLOT_US).label("slot"),
            summary.energy_class,
            func.count(),
            func.sum(summary.input_tokens),
            func.sum(summary.output_tokens),
            func.sum(summary.complete_units),
            func.sum(summary.fragment_units),
            func.sum(summary.energy_uj - summary.energy_uj % SHOWN_STEP_UJ),
        )
        .where(
            summary.tenant_id == tenant_id,
            summary.ended_at_us >= start_us,
            summary.ended_at_us < end_us,
        )
        .group_by("slot", summary.energy_class)
    )
    sums: defaultdict[tuple[date, EnergyClass], Counter[str]] = defaultdict(Counter)
    for slot, energy_class, *counts in rows:
        day = datetime.fromtimestamp(slot * SLOT_US // 10**6, zone).date()
        for name, count in zip(COUNTS, counts, strict=True):
            sums[day, EnergyClass(energy_class)][name] += int(count or 0)
    return [
        DailyUsage(
            day,
            energy_class,
            *(counted[name] for name in COUNTS[:-1]),
            shown_uj=None if energy_class is EnergyClass.UNAVAILABLE else counted["shown_uj"],
        )
        for (day, energy_class), counted in sorted(sums.items())
    ]


def scores(connection: Connection, tenant_id: str, start_us: int, end_us: int) -> list[ScoreCount]:
    """How many of a tenant's requests that ended in [start, end) scored how, lowest first."""
    summary = request_summaries.c
    hundredth = func.substr(summary.geo_mean, 1, 4)  # "0.97" of "0.9712": four places are fixed
    rows = connection.execute(
        select(hundredth, summary.tier, func.count())
        .where(
            summary.tenant_id == tenant_id,
            summary.ended_at_us >= start_us,
            summary.ended_at_us < end_us,
        )
        .group_by(hundredth, summary.tier)
    )
    counts = [
        ScoreCount(
            None if text is None else int(text.replace(".", "")),
            None if tier is None else ConfidenceTier(tier),
            count,
        )
        for text, tier, count in rows
    ]
    return sorted(counts, key=lambda each: -1 if each.hundredth is None else each.hundredth)
