"""Calibration: what a score means, learnt from verdicts and told with its version.

Fitting (`fitting`, `guarantees`) needs scikit-learn and is imported by the command that does it;
what is here applies and reads curves, and needs nothing.
"""

from metering.calibration.curves import REQUEST, Calibration, Curve
from metering.calibration.labels import (
    REVIEWERS,
    WHOLE,
    Label,
    LabelCount,
    label_counts,
    labelled_models,
    labels,
)
from metering.calibration.versions import Version, calibration, in_force, revision, store, versions

__all__ = [
    "REQUEST",
    "REVIEWERS",
    "WHOLE",
    "Calibration",
    "Curve",
    "Label",
    "LabelCount",
    "Version",
    "calibration",
    "in_force",
    "label_counts",
    "labelled_models",
    "labels",
    "revision",
    "store",
    "versions",
]
