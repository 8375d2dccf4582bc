"""Calibration: what a score means, learnt from reviewers' verdicts and told with its version.

Fitting (`fitting`, `guarantees`, `plot`) needs scikit-learn and is imported by the command that
does it; what is here applies curves, and needs nothing.
"""

from metering.calibration.curves import REQUEST, Calibration, Curve
from metering.calibration.labels import WHOLE, Label, labelled_models, labels
from metering.calibration.versions import calibration, in_force, revision, store

__all__ = [
    "REQUEST",
    "WHOLE",
    "Calibration",
    "Curve",
    "Label",
    "calibration",
    "in_force",
    "labelled_models",
    "labels",
    "revision",
    "store",
]
