"""Fitting curves to labels: isotonic regression, judged on what each fit has not seen.

scikit-learn does the fitting (Zadrozny and Elkan 2002). A curve never claims to be surer than its
labels allow: it stays within the rule of succession, `1 / (n + 2)` from certainty. Figures are
cross-fitted over five folds, none of which parts what errs together: units of one answer, answers
to one question.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from metering.calibration.curves import ONE, REQUEST, Curve
from metering.calibration.extras import extra
from metering.calibration.figures import Array, column, figures
from metering.calibration.guarantees import guarantee, least_labels
from metering.calibration.labels import REVIEWERS, Label, independent
from metering.calibration.reports import KindReport, Report
from metering.confidence import REVIEW_BELOW
from metering.errors import NotCalibrated

FOLDS = 5


def fit(
    model: str,
    model_checksum: str,
    labels: Sequence[Label],
    *,
    error: float = 0.05,
    confidence: float = 0.95,
    guard: bool = False,
    revision: int = 1,
    judge: str = REVIEWERS,
) -> Report:
    """Fit every kind's curve to one judge's labels and find its guarantee.

    With `guard` answers below the guaranteed score go to review. Raises NotCalibrated where there
    is no such score to guard by.
    """
    kinds = sorted({label.kind for label in labels}, key=lambda kind: (kind != REQUEST, kind))
    reports = tuple(
        _fit_kind(kind, [each for each in labels if each.kind == kind], error, confidence)
        for kind in kinds
    )
    review_below = None
    if guard:
        promised = next(
            (each.guarantee for each in reports if each.kind == REQUEST and each.guarantee), None
        )
        if promised is None:
            raise NotCalibrated(
                f"no score of a whole answer promises at most {error:g} errors at {confidence:g}"
            )
        review_below = promised.threshold
    least = least_labels(error, confidence)
    return Report(
        model, model_checksum, error, confidence, least, reports, review_below, revision, judge
    )


def _fit_kind(kind: str, labels: list[Label], error: float, confidence: float) -> KindReport:
    requests = len({label.request_id for label in labels})
    clusters = len({label.errs_with for label in labels})
    sampled = independent(label for label in labels if label.sampled)
    least = least_labels(error, confidence)
    if len(sampled) < least:
        return KindReport(
            kind=kind,
            labels=len(labels),
            requests=requests,
            sampled=len(sampled),
            right=None,
            raw=None,
            calibrated=None,
            guarantee=None,
            curve=None,
            reason=f"{len(sampled)} of the {least} sampled labels that could promise anything",
        )
    score = column([label.score / ONE for label in labels])
    right = column([label.correct for label in labels])
    weight = column([label.weight for label in labels])
    folds = np.array([_fold(label.errs_with) for label in labels])
    below = float(REVIEW_BELOW)
    return KindReport(
        kind=kind,
        labels=len(labels),
        requests=requests,
        sampled=len(sampled),
        right=float(np.average(right, weights=weight)),
        raw=figures(score, right, weight, below),
        calibrated=figures(
            _cross_fitted(score, right, weight, folds, clusters), right, weight, below
        ),
        guarantee=guarantee(sampled, error, confidence),
        curve=_curve(score, right, weight, clusters),
    )


def _curve(score: Array, right: Array, weight: Array, clusters: int) -> Curve:
    isotonic: Any = extra("sklearn.isotonic")
    margin = 1 / (clusters + 2)
    model = isotonic.IsotonicRegression(y_min=margin, y_max=1 - margin, out_of_bounds="clip")
    model.fit(score, right, sample_weight=weight)
    scores = np.rint(model.X_thresholds_ * ONE).astype(int).tolist()
    # Rounded first, so that rounding can't bring a rate nearer to certainty than the margin.
    least = -(-ONE // (clusters + 2))
    rates = np.clip(np.rint(model.y_thresholds_ * ONE), least, ONE - least).astype(int).tolist()
    return Curve(tuple(scores), tuple(rates))


def _cross_fitted(
    score: Array, right: Array, weight: Array, folds: np.ndarray, clusters: int
) -> Array:
    said = np.empty_like(score)
    for fold in range(FOLDS):
        own = folds == fold
        if not own.any():
            continue
        seen = ~own if (~own).any() else own
        curve = _curve(score[seen], right[seen], weight[seen], clusters)
        said[own] = np.interp(score[own] * ONE, curve.scores, curve.rates) / ONE
    return said


def _fold(cluster: str) -> int:
    return hashlib.sha256(f"fold:{cluster}".encode()).digest()[0] % FOLDS
