"""How many lines one core rates in a second. Pure computation: no database, no clock in it."""

from __future__ import annotations

import time
from typing import Any

from billing import rating, tariffs
from engine.records import DraftCounters
from metering.events import (
    ConfidenceSummary,
    ConfidenceTier,
    EndedBy,
    EnergyClass,
    EnergySummary,
    RequestStatus,
    RequestSummary,
    UnitState,
    UnitSummary,
)

GOAL_LINES_PER_S = 50_000
TARIFF = "composite"
UNITS = 12
TIERS = tuple(ConfidenceTier)


def measure(*, requests: int) -> dict[str, Any]:
    """Rate that many different requests of a dozen units under the shipped composite tariff."""
    tariff = tariffs.shipped()[TARIFF]
    made = [_summary(number) for number in range(requests)]
    started_ns = time.process_time_ns()
    lines = sum(len(rating.rate(each, tariff, review_fee=True).lines) for each in made)
    spent_s = (time.process_time_ns() - started_ns) / 1e9
    rate = lines / spent_s
    return {
        "requests": requests,
        "rated_lines": lines,
        "cpu_s": round(spent_s, 3),
        "lines_per_s_per_core": round(rate),
        "to_goal": round(rate / GOAL_LINES_PER_S, 2),
    }


def _summary(number: int) -> RequestSummary:
    units = tuple(_unit(number, place) for place in range(UNITS))
    tokens = sum(unit.tokens for unit in units)
    return RequestSummary(
        request_id=f"req_{number}",
        tenant_id="ten_bench",
        model="bench",
        tariff_version_id=f"{TARIFF}@1",
        status=RequestStatus.COMPLETED,
        finish_reason="stop",
        ended_by=EndedBy.MODEL,
        input_tokens=20 + number % 300,
        output_tokens=tokens,
        unattached_tokens=0,
        blocks=tokens // 2,
        verified_blocks=tokens // 3,
        output_sha256="0" * 64,
        segmenter="units/1",
        units=units,
        confidence=ConfidenceSummary(
            tokens=tokens,
            sum_logprob="-1.000000",
            geo_mean="0.9000",
            min_prob="0.1000",
            calibrated=None,
            basis="geo_mean",
            tier=ConfidenceTier.REDUCED,
        ),
        information_ubits=number * 1_234_567 % 10**9,
        energy=EnergySummary(
            energy_class=EnergyClass.ESTIMATED,
            energy_uj=number * 7_654_321 % 10**9,
            shown_uj=number * 7_654_321 % 10**9 // 100_000 * 100_000,
            source="cpu_time",
            scope="process",
            method="affine-shapley/1",
            uncertainty_pct=None,
        ),
        drafting=DraftCounters(),
        review_reason=None,
        started_at_us=0,
        ended_at_us=1,
    )


def _unit(number: int, place: int) -> UnitSummary:
    tokens = 1 + (number + place) % 17
    return UnitSummary(
        index=place,
        kind="sentence",
        state=UnitState.FRAGMENT if place == UNITS - 1 else UnitState.COMPLETE,
        byte_start=place * 100,
        byte_end=place * 100 + 100,
        tokens=tokens,
        sum_logprob="-0.100000",
        geo_mean="0.9000",
        min_prob="0.1000",
        tier=TIERS[(number + place) % len(TIERS)],
    )
