"""A calibration at work: scores, tiers and the review rule read it, and name it."""

from __future__ import annotations

from metering_cases import VOCAB_SIZE, admitted_request, block, step

from engine.records import FinishReason, Work
from metering import bodies
from metering.calibration import REQUEST, Calibration, Curve
from metering.events import ConfidenceTier, EndedBy, RequestStatus, RequestSummary
from metering.request_meter import RequestMeter
from metering.review_rule import ReviewRule

HUMBLE = Calibration(
    "cal_1",
    "tiny",
    "sha256:x",
    {
        REQUEST: Curve((0, 10_000), (0, 9000)),
        "sentence": Curve((0, 10_000), (0, 4000)),
    },
)


def summary_of(calibration: Calibration | None, logprob: float) -> RequestSummary:
    meter = RequestMeter(admitted_request(), ReviewRule(0.0), calibration)
    said = block(0, "A", " cat", " sat", ".", " Then", logprob=logprob)
    meter.fold(bodies.block_body(step(0), said, Work(), VOCAB_SIZE))
    meter = meter.copy()
    end = meter.terminal(RequestStatus.COMPLETED, FinishReason.LENGTH, EndedBy.TENANT)
    return meter.summary(end, 1)


def test_tiers_are_read_from_calibrated_scores_and_say_so() -> None:
    summary = summary_of(HUMBLE, -0.01)
    score = summary.confidence
    assert score is not None
    assert (score.geo_mean, score.calibrated, score.basis) == ("0.9900", "0.8910", "calibrated")
    assert score.tier is ConfidenceTier.REDUCED
    assert summary.calibration == "cal_1"
    sentence = summary.units[0]
    assert (sentence.geo_mean, sentence.calibrated) == ("0.9900", "0.3960")
    assert sentence.tier is ConfidenceTier.REVIEW
    assert summary.review_reason == "unit_confidence"  # 0.3960 is below 0.50


def test_a_kind_without_a_curve_stays_as_it_is() -> None:
    only_whole = Calibration("cal_2", "tiny", "x", {REQUEST: HUMBLE.curves[REQUEST]})
    summary = summary_of(only_whole, -0.01)
    assert summary.units[0].calibrated is None
    assert summary.units[0].tier is ConfidenceTier.STANDARD
    assert summary.review_reason is None
    uncalibrated = summary_of(None, -0.01)
    assert uncalibrated.confidence is not None
    assert (uncalibrated.confidence.calibrated, uncalibrated.calibration) == (None, None)


def test_a_guarantee_in_force_sends_what_it_does_not_cover_to_review() -> None:
    guarded = Calibration("cal_3", "tiny", "x", {}, review_below="0.9950")
    assert summary_of(guarded, -0.01).review_reason == "request_confidence"
    assert summary_of(guarded, -0.001).review_reason is None


def test_a_sampled_request_carries_how_likely_that_was() -> None:
    meter = RequestMeter(admitted_request(), ReviewRule(1.0))
    end = meter.terminal(RequestStatus.COMPLETED, FinishReason.STOP, EndedBy.MODEL)
    assert meter.summary(end, 1).audit_ppm == 1_000_000
    assert summary_of(None, -0.01).audit_ppm is None
