"""What our own requests usually come to: the ground of a guess, and nothing is billed by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from billing.rating import MILLIONTH
from metering.events import ConfidenceTier, RequestSummary, UnitState

# What an engine of ours can be charged for; `reported` joules are another's.
OwnClass = Literal["measured", "estimated"]
OWN_CLASSES: tuple[OwnClass, ...] = ("measured", "estimated")


@dataclass(frozen=True, slots=True)
class Typical:
    """What requests usually come to; a null measure is taken at the tariff's cap."""

    complete_share: Decimal = Decimal("0.95")  # of output tokens; the rest are fragments
    tier_shares: tuple[Decimal, Decimal, Decimal] = (  # standard, reduced, review
        Decimal("0.5"),
        Decimal("0.4"),
        Decimal("0.1"),
    )
    review_share: Decimal = Decimal("0.05")  # of requests
    energy_class: OwnClass | None = None  # null: the dearest that the tariff charges for
    joules_per_token: Decimal | None = None  # prompt and output tokens alike
    bits_per_token: Decimal | None = None
    verified_blocks_per_token: Decimal = Decimal("0.2")


USUAL = Typical()


def typical_of(summaries: Sequence[RequestSummary]) -> Typical:
    """What these requests, all with output, came to on average; the defaults where none did.

    Energy is taken from the class that most of them have: classes are never mixed.
    """
    tokens = sum(summary.output_tokens for summary in summaries)
    if not tokens:
        return USUAL
    complete: Counter[bool] = Counter()
    tiers: Counter[ConfidenceTier] = Counter()
    for unit in (unit for summary in summaries for unit in summary.units):
        complete[unit.state is UnitState.COMPLETE] += unit.tokens
        if unit.tier is not None:
            tiers[unit.tier] += unit.tokens
    bits = [
        (summary.information_ubits, summary.output_tokens)
        for summary in summaries
        if summary.information_ubits is not None
    ]
    energy_class, joules = _usual_energy(summaries)
    return Typical(
        complete_share=(
            _share(complete[True], complete.total()) if complete.total() else USUAL.complete_share
        ),
        tier_shares=(
            (
                _share(tiers[ConfidenceTier.STANDARD], tiers.total()),
                _share(tiers[ConfidenceTier.REDUCED], tiers.total()),
                _share(tiers[ConfidenceTier.REVIEW], tiers.total()),
            )
            if tiers.total()
            else USUAL.tier_shares
        ),
        review_share=_share(
            sum(summary.review_reason is not None for summary in summaries), len(summaries)
        ),
        energy_class=energy_class,
        joules_per_token=joules,
        bits_per_token=(
            _share(sum(ubits for ubits, _ in bits), 10**6 * sum(count for _, count in bits))
            if bits
            else None
        ),
        verified_blocks_per_token=_share(
            sum(summary.verified_blocks for summary in summaries), tokens
        ),
    )


def _usual_energy(
    summaries: Sequence[RequestSummary],
) -> tuple[OwnClass | None, Decimal | None]:
    counts = Counter(summary.energy.energy_class.value for summary in summaries)
    usual = max(OWN_CLASSES, key=lambda kind: counts[kind])
    measured = [
        (summary.energy.shown_uj, summary.input_tokens + summary.output_tokens)
        for summary in summaries
        if summary.energy.energy_class == usual and summary.energy.shown_uj is not None
    ]
    if not measured:
        return None, None
    return usual, _share(sum(uj for uj, _ in measured), 10**6 * sum(n for _, n in measured))


def _share(part: int, whole: int) -> Decimal:
    return (Decimal(part) / Decimal(whole)).quantize(MILLIONTH)
