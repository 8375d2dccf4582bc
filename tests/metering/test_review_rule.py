"""Which requests a human should see."""

from __future__ import annotations

import pytest

from metering.confidence import Score, summarise
from metering.events import ConfidenceSummary
from metering.review_rule import ReviewRule


def score(geo_mean_unats: int) -> ConfidenceSummary:
    return summarise(Score(1, geo_mean_unats, geo_mean_unats))


CONFIDENT, DOUBTFUL = score(-10_000), score(-700_000)


@pytest.mark.parametrize(
    ("tokens", "scored", "weakest", "reason"),
    [
        (3, CONFIDENT, "0.9000", None),
        (3, CONFIDENT, None, None),
        (3, CONFIDENT, "0.5000", None),
        (3, CONFIDENT, "0.4999", "unit_confidence"),
        (3, DOUBTFUL, "0.4000", "request_confidence"),
        (3, None, "0.9000", "missing_score"),
        (0, None, None, None),
    ],
)
def test_the_rule(
    tokens: int, scored: ConfidenceSummary | None, weakest: str | None, reason: str | None
) -> None:
    assert ReviewRule(0.0).reason("req_1", tokens, scored, weakest) == reason


def test_others_are_sampled_at_the_rate_that_is_set() -> None:
    rule = ReviewRule(0.02, "seed")
    sampled = sum(rule.samples(f"req_{number}") for number in range(20_000))
    assert 320 <= sampled <= 480, "six standard deviations around 400"
    assert not any(ReviewRule(0.0).samples(f"req_{number}") for number in range(1000))
    assert all(ReviewRule(1.0).samples(f"req_{number}") for number in range(1000))
    assert ReviewRule(1.0).reason("req_1", 3, CONFIDENT, None) == "audit"


def test_the_sample_can_be_drawn_again_and_depends_on_the_seed() -> None:
    ids = [f"req_{number}" for number in range(2000)]
    drawn = [ReviewRule(0.1, "a").samples(each) for each in ids]
    assert [ReviewRule(0.1, "a").samples(each) for each in ids] == drawn
    assert [ReviewRule(0.1, "b").samples(each) for each in ids] != drawn
