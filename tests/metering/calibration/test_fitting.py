"""Calibration on worlds whose truth is known: what it learns, what it promises, what it refuses."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import msgspec
import numpy as np
import pytest
from labels import CHECKSUM, MODEL, reviewed, truth
from scipy.stats import binom

from metering.calibration import REQUEST, Label
from metering.calibration.curves import ONE, to_text
from metering.calibration.figures import auroc, bins, column, figures
from metering.calibration.fitting import fit
from metering.calibration.guarantees import guarantee, least_labels, upper_bound
from metering.calibration.labels import independent
from metering.calibration.plot import reliability_svg
from metering.errors import NotCalibrated


def sampled_labels(count: int, wrong: int, score: str = "0.9900") -> list[Label]:
    """Sampled answers of one score, the first of them wrong."""
    return [
        Label(f"req_{number}", -1, MODEL, CHECKSUM, REQUEST, score, number >= wrong, 10_000, True)
        for number in range(count)
    ]


def test_what_reviewers_found_becomes_a_curve_near_the_truth() -> None:
    """Given doubtful answers in full and a tenth of the others, weighted by how likely each was."""
    report = fit(MODEL, CHECKSUM, reviewed(9000, audit_ppm=100_000))
    (kind,) = report.kinds
    assert kind.curve is not None
    assert kind.raw is not None
    assert kind.calibrated is not None
    for score in (5000, 7000, 8500, 9500):
        rate = float(kind.curve.at(to_text(score)))
        assert rate == pytest.approx(truth(score), abs=0.12), score
    assert kind.calibrated.ece < kind.raw.ece / 2
    assert kind.calibrated.brier < kind.raw.brier
    assert kind.raw.auroc == pytest.approx(kind.calibrated.auroc, abs=0.06)
    assert list(kind.curve.rates) == sorted(kind.curve.rates)


@pytest.mark.parametrize(("count", "nearest"), [(100, 99), (4321, 3), (19_998, 1), (25_000, 1)])
@pytest.mark.parametrize("right", [True, False])
def test_a_curve_is_never_nearer_to_certainty_than_its_labels_allow(
    count: int, nearest: int, right: bool
) -> None:
    (kind,) = fit(MODEL, CHECKSUM, sampled_labels(count, 0 if right else count)).kinds
    assert kind.curve is not None
    said = kind.curve.rates[0]
    assert (ONE - said if right else said) == nearest
    assert nearest * (count + 2) >= ONE


def test_without_weights_the_curve_would_be_another() -> None:
    """Doubtful answers are a small part of all, and nearly all of the labels."""
    labels = reviewed(9000, audit_ppm=20_000)
    (kind,) = fit(MODEL, CHECKSUM, labels).kinds
    share = sum(label.correct for label in labels) / len(labels)
    assert kind.right is not None
    assert kind.right > share + 0.2
    everything = np.random.default_rng(0).beta(9, 1.2, 9000) ** 3
    assert kind.right == pytest.approx(float(everything.mean()), abs=0.08)


def test_below_the_least_number_of_labels_a_kind_stays_uncalibrated() -> None:
    assert least_labels(0.05, 0.95) == 59
    assert least_labels(0.01, 0.95) == 299
    few = fit(MODEL, CHECKSUM, sampled_labels(58, 0))
    assert few.curves == {}
    assert "58 of the 59" in str(few.kinds[0].reason)
    enough = fit(MODEL, CHECKSUM, sampled_labels(59, 0))
    assert set(enough.curves) == {REQUEST}
    # Never surer than so many labels allow, though all of them were right.
    assert enough.curves[REQUEST].rates[-1] == round(ONE * (1 - 1 / 61))
    doubted = [
        Label(f"q{n}", -1, MODEL, CHECKSUM, REQUEST, "0.5000", False, 1_000_000, False)
        for n in range(500)
    ]
    # Whatever was reviewed for its score says nothing of how often answers are wrong.
    assert fit(MODEL, CHECKSUM, doubted).curves == {}


def test_units_of_one_answer_count_as_one() -> None:
    labels = reviewed(800, kind="sentence", units=40, audit_ppm=60_000)
    answers = {label.request_id for label in labels if label.sampled}
    assert len(independent(label for label in labels if label.sampled)) == len(answers)
    (kind,) = fit(MODEL, CHECKSUM, labels).kinds
    assert kind.sampled == len(answers) < 59 < sum(label.sampled for label in labels)
    assert kind.curve is None


@pytest.mark.parametrize(("errors", "labels"), [(0, 59), (1, 80), (7, 200), (30, 300)])
def test_the_bound_is_clopper_and_pearsons(errors: int, labels: int) -> None:
    bound = upper_bound(errors, labels, 0.95)
    assert float(binom.cdf(errors, labels, bound)) == pytest.approx(0.05, abs=1e-9)
    assert upper_bound(5, 5, 0.95) == 1.0


def test_the_loosest_threshold_that_holds_is_promised_and_no_looser_one() -> None:
    good, bad = sampled_labels(200, 0, "0.9500"), sampled_labels(100, 40, "0.6000")
    found = guarantee([*good, *bad], 0.05, 0.95)
    assert found is not None
    assert found.threshold == "0.6050"  # the last of the grid above what fails
    assert (found.accepted, found.errors) == (200, 0)
    assert found.bound == upper_bound(0, 200, 0.95) <= 0.05
    assert found.coverage == pytest.approx(200 / 300)
    assert guarantee(sampled_labels(300, 60), 0.05, 0.95) is None
    # Sequential: a threshold below one that failed is not tried, however good it looks.
    late = [*sampled_labels(700, 100, "0.9500"), *sampled_labels(4000, 0, "0.5000")]
    assert guarantee(late, 0.05, 0.95) is None
    # But among many labels not by the few that score highest.
    early = [*sampled_labels(70, 2, "0.9500"), *sampled_labels(800, 0, "0.9000")]
    found = guarantee(early, 0.05, 0.95)
    assert found is not None
    assert (found.accepted, found.errors) == (870, 2)


def test_promises_are_broken_no_more_often_than_they_say() -> None:
    """Over many worlds: the true error above what is promised exceeds 10 % in at most 10 %."""
    scores = np.linspace(0.5, 1, 501)
    broken = promised = 0
    for seed in range(120):
        random = np.random.default_rng(seed)
        drawn = random.choice(scores, 400)
        labels = [
            Label(f"r{n}", -1, MODEL, CHECKSUM, REQUEST, f"{s:.4f}", bool(ok), 10_000, True)
            for n, (s, ok) in enumerate(zip(drawn, random.random(400) < drawn**0.7, strict=True))
        ]
        found = guarantee(labels, 0.10, 0.90)
        if found is None:
            continue
        promised += 1
        above = scores[scores >= float(found.threshold) - 1e-9]
        broken += float((1 - above**0.7).mean()) > 0.10
    assert promised > 60
    # Three standard deviations above a tenth of them.
    assert broken <= 0.1 * promised + 3 * math.sqrt(0.09 * promised)


def test_guarding_needs_a_promise() -> None:
    labels = sampled_labels(300, 0)
    assert fit(MODEL, CHECKSUM, labels, guard=True).review_below is not None
    with pytest.raises(NotCalibrated):
        fit(MODEL, CHECKSUM, sampled_labels(300, 200), guard=True)


def test_figures_are_what_they_are_by_hand() -> None:
    said = column([0.1, 0.4, 0.4, 0.8])
    right = column([0, 0, 1, 1])
    weight = column([1, 2, 1, 4])
    found = figures(said, right, weight, 0.70)
    assert found.brier == pytest.approx((0.01 + 2 * 0.16 + 0.36 + 4 * 0.04) / 8)
    assert found.coverage == 0.5
    # Pairs (right, wrong) by weight: 1*1 above, 1*2 tied, 4*3 above, of 5*3.
    assert found.auroc == pytest.approx((1 + 1 + 12) / 15)
    assert found.ece == pytest.approx((1 * 0.1 + 3 * abs(0.4 - 1 / 3) + 4 * 0.2) / 8)
    assert auroc(said, column([1, 1, 1, 1]), weight) is None


def test_equal_predictions_share_a_bin_and_bins_share_the_weight() -> None:
    random = np.random.default_rng(1)
    said = np.round(random.random(500), 1)
    found = bins(said, (random.random(500) < said).astype(float), np.ones(500))
    assert sum(each.share for each in found) == pytest.approx(1)
    assert sum(each.labels for each in found) == 500
    for value in np.unique(said):
        assert sum(abs(each.said - value) < 1e-9 for each in found) <= 1


def test_the_plot_is_a_drawing_of_every_calibrated_kind() -> None:
    labels = reviewed(6000, audit_ppm=50_000)
    labels += reviewed(6000, kind="sentence", seed=1, units=3, audit_ppm=50_000)
    labels += reviewed(300, kind="heading", seed=2)
    report = fit(MODEL, CHECKSUM, labels)
    assert [each.kind for each in report.kinds] == ["request", "heading", "sentence"]
    root = ElementTree.fromstring(reliability_svg(report))
    drawn = "".join(root.itertext())
    assert "request" in drawn
    assert "sentence" in drawn
    assert "heading" not in drawn
    assert len(root.findall(".//{*}circle")) > 20
    assert report.id in drawn


def test_answers_to_one_question_are_one_witness_and_never_on_both_sides_of_a_fit() -> None:
    """Given questions whose answers are all right or all wrong, each with a score of its own, which
    says nothing: to whoever has seen one of them it says everything."""
    random = np.random.default_rng(3)
    labels = [
        Label(
            f"r{question}_{answer}", -1, MODEL, CHECKSUM, REQUEST, to_text(9 * question),
            bool(right), 1_000_000, True, "tests", f"q{question}",
        )
        for question, right in enumerate(random.random(1000) < 0.5)
        for answer in range(2)
    ]  # fmt: skip
    (kind,) = fit(MODEL, CHECKSUM, labels, judge="tests").kinds
    assert (kind.labels, kind.requests, kind.sampled) == (2000, 2000, 1000)
    assert kind.calibrated is not None
    assert kind.calibrated.auroc == pytest.approx(0.5, abs=0.08)
    assert kind.calibrated.brier > 0.24
    few = fit(MODEL, CHECKSUM, labels[: 2 * 58])
    assert "58 of the 59" in str(few.kinds[0].reason)
    # So are the choices of one order.
    order = [
        Label(name, -1, MODEL, CHECKSUM, REQUEST, "0.9000", True, 10_000, True)
        for name in ("req_1", "req_1.1", "req_1.2", "req_2")
    ]
    assert len(independent(order)) == 2


def test_a_report_from_before_judges_were_named_keeps_its_id() -> None:
    report = fit(MODEL, CHECKSUM, sampled_labels(59, 0))
    document = msgspec.json.encode(report)
    assert b"judge" not in document
    assert msgspec.json.decode(document, type=type(report)).id == report.id
    judged = fit(MODEL, CHECKSUM, sampled_labels(59, 0), judge="tests")
    assert b'"judge":"tests"' in msgspec.json.encode(judged)
    assert judged.id != report.id
