"""Confidence: the joint probability of the output under the raw verifier, and its tier. Pure.

Sums are integer micronats. Everything shown is a decimal string, rounded half-even once; the
tier is read from the rounded value, so that anyone who holds a receipt can check it.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal

import msgspec

from metering.events import ConfidenceSummary, ConfidenceTier

STANDARD_FROM = Decimal("0.95")
REVIEW_BELOW = Decimal("0.70")
BASIS_GEO_MEAN = "geo_mean"
BASIS_CALIBRATED = "calibrated"

FOUR_PLACES = Decimal("0.0001")
# Decimal's exp is correctly rounded, unlike libm's: the same digits on every machine.
_CONTEXT = Context(prec=20, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999)
_UNDERFLOW_UNATS = -20_000_000  # exp(-20) already rounds to 0.0000


class Score(msgspec.Struct, frozen=True, gc=False):
    """The raw facts of a run of tokens: how many, their joint, and the least likely of them."""

    tokens: int
    sum_unats: int
    min_unats: int

    @property
    def sum_logprob(self) -> str:
        """The joint log-probability in nats, 6 places."""
        nats, rest = divmod(abs(self.sum_unats), 1_000_000)
        return f"{'-' if self.sum_unats < 0 else ''}{nats}.{rest:06}"

    @property
    def geo_mean(self) -> str:
        """exp(sum / tokens), 4 places."""
        return probability(self.sum_unats, self.tokens)

    @property
    def min_prob(self) -> str:
        """The smallest probability among the tokens, 4 places."""
        return probability(self.min_unats)

    @property
    def joint_prob(self) -> str:
        """exp(sum), 4 places."""
        return probability(self.sum_unats)


def probability(unats: int, tokens: int = 1) -> str:
    """exp of so many micronats, divided by so many tokens, as a decimal string of 4 places."""
    if unats < _UNDERFLOW_UNATS * tokens:
        return "0.0000"
    # A float is within 1e-10 of the number of ten-thousandths, so it knows on which side of a half
    # that lies unless it is very near to one: the digits are the same, thirty times as fast.
    near = math.exp(unats / tokens * 1e-6) * 1e4
    if abs(near % 1 - 0.5) > 1e-9:
        whole, rest = divmod(round(near), 10_000)
        return f"{whole}.{rest:04}"
    value = _CONTEXT.exp(_CONTEXT.scaleb(Decimal(unats) / tokens, -6))
    return str(_CONTEXT.quantize(value, FOUR_PLACES))


def tier(rounded: str) -> ConfidenceTier:
    """The tier of a probability as it is shown."""
    value = Decimal(rounded)
    if value >= STANDARD_FROM:
        return ConfidenceTier.STANDARD
    return ConfidenceTier.REVIEW if value < REVIEW_BELOW else ConfidenceTier.REDUCED


def summarise(score: Score, calibrated: str | None = None) -> ConfidenceSummary:
    """A request's confidence from its raw facts, and its calibrated score where there is one."""
    geo_mean = score.geo_mean
    return ConfidenceSummary(
        tokens=score.tokens,
        sum_logprob=score.sum_logprob,
        geo_mean=geo_mean,
        min_prob=score.min_prob,
        calibrated=calibrated,
        basis=BASIS_GEO_MEAN if calibrated is None else BASIS_CALIBRATED,
        tier=tier(calibrated or geo_mean),
    )
