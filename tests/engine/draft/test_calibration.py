"""Weights are counted acceptance over a prior."""

import pytest

from engine.draft.calibration import Calibration
from engine.draft.proposals import Proposal, Source


def proposal(*tokens: int, match_length: int = 2, rank: int = 0) -> Proposal:
    return Proposal(Source.SUFFIX, rank, match_length, tokens)


def test_longer_evidence_is_believed_more_before_anything_is_known() -> None:
    weights = Calibration().weights(proposal(1, 2, 3, 4))
    assert weights == sorted(weights)
    assert weights == pytest.approx([0.5, 0.6, 4 / 6, 5 / 7])


def test_counts_overrule_the_prior() -> None:
    calibration = Calibration()
    for _ in range(792):
        calibration.observe(proposal(1), [9])
    assert calibration.weights(proposal(1)) == pytest.approx([0.5 * 8 / 800])
    assert calibration.weights(proposal(1, match_length=3)) == pytest.approx([0.6])


def test_nothing_is_counted_beyond_the_first_wrong_token_or_the_end() -> None:
    calibration = Calibration()
    calibration.observe(proposal(1, 2, 3, 4), [1, 9])
    calibration.observe(proposal(1, 2, 3, 4), [1])
    weights = calibration.weights(proposal(1, 2, 3, 4))
    assert weights == pytest.approx([6 / 10, 4.8 / 9, 4 / 6, 5 / 7])


def test_a_sources_second_thoughts_are_counted_apart() -> None:
    calibration = Calibration()
    before = calibration.weights(proposal(1, rank=1))
    calibration.observe(proposal(1), [1])
    assert calibration.weights(proposal(1, rank=1)) == before
    assert before < calibration.weights(proposal(1))
