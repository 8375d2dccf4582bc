"""Scores as they are shown: rounded once, half to even, tiers read from the rounded value."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal

import pytest

from metering.confidence import Score, probability, summarise, tier
from metering.events import ConfidenceTier


@pytest.mark.parametrize(
    ("unats", "shown"),
    [
        (0, "1.0000"),
        (-1, "1.0000"),
        (-50, "1.0000"),  # exp(-0.00005) = 0.99995000125
        (-51, "0.9999"),
        (-693_147, "0.5000"),
        (-2_302_585, "0.1000"),
        (-20_000_001, "0.0000"),
        (-(10**12), "0.0000"),
    ],
)
def test_probabilities_are_shown_with_four_places(unats: int, shown: str) -> None:
    assert probability(unats) == shown


def test_probabilities_agree_with_the_mathematics() -> None:
    for unats in range(-12_000_000, 0, 37_001):
        assert float(probability(unats)) == pytest.approx(math.exp(unats / 1e6), abs=5.1e-5)


def test_each_digit_is_the_correctly_rounded_one() -> None:
    """Beside every half, where a float might fall on the wrong side of it, and elsewhere."""
    context = Context(prec=20, rounding=ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999)
    halves = [(Decimal(place) + Decimal("0.5")) / 10_000 for place in range(1, 10_000, 7)]
    beside = [int(context.ln(half) * 10**18) + nudge for half in halves for nudge in (0, 10**4)]
    many = 10**12  # tokens that a sum is divided by, so that the mean lies as near to a half
    for unats in (*beside, *range(-19_999_999 * many, 0, 77_777 * many)):
        exact = context.exp(context.scaleb(Decimal(unats), -18))
        assert probability(unats, many) == str(context.quantize(exact, Decimal("0.0001")))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("1.0000", ConfidenceTier.STANDARD),
        ("0.9500", ConfidenceTier.STANDARD),
        ("0.9499", ConfidenceTier.REDUCED),
        ("0.7000", ConfidenceTier.REDUCED),
        ("0.6999", ConfidenceTier.REVIEW),
        ("0.0000", ConfidenceTier.REVIEW),
    ],
)
def test_tiers_begin_where_the_design_says(shown: str, expected: ConfidenceTier) -> None:
    assert tier(shown) is expected


def test_the_tier_is_that_of_the_rounded_value() -> None:
    # exp(-0.051320) = 0.94997..., which is shown as 0.9500.
    summary = summarise(Score(tokens=1, sum_unats=-51_320, min_unats=-51_320))
    assert (summary.geo_mean, summary.tier) == ("0.9500", ConfidenceTier.STANDARD)


def test_the_mean_is_over_tokens_and_the_joint_is_not() -> None:
    score = Score(tokens=4, sum_unats=-400_000, min_unats=-250_000)
    assert (score.geo_mean, score.joint_prob, score.min_prob, score.sum_logprob) == (
        "0.9048",
        "0.6703",
        "0.7788",
        "-0.400000",
    )


@pytest.mark.parametrize(
    ("unats", "shown"), [(-1, "-0.000001"), (-999_999, "-0.999999"), (-(10**7), "-10.000000")]
)
def test_a_joint_is_shown_with_six_places(unats: int, shown: str) -> None:
    assert Score(1, unats, unats).sum_logprob == shown


def test_a_certain_score_has_no_minus_sign() -> None:
    assert Score(3, 0, 0).sum_logprob == "0.000000"
