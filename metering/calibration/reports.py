"""What a calibration says for itself: its figures, by kind, as they are stored and shown."""

from __future__ import annotations

import hashlib

import msgspec

from metering.calibration.curves import Calibration, Curve
from metering.calibration.labels import REVIEWERS


class Bin(msgspec.Struct, frozen=True):
    """Predictions of about the same size: their mean, how often they were right, how many."""

    said: float
    right: float
    labels: int
    share: float  # of all weight


class Figures(msgspec.Struct, frozen=True):
    """What predictions are worth. Smaller is better for the first two, larger for `auroc`.

    `auroc` is null where all outcomes are alike. `coverage` is the share not sent to review.
    """

    brier: float
    ece: float
    auroc: float | None
    coverage: float
    bins: tuple[Bin, ...]


class Guarantee(msgspec.Struct, frozen=True):
    """At most `error` of the texts scored `threshold` or more are wrong, with `confidence`.

    It holds for texts like those that were sampled: the same model, the same kinds of prompt.
    """

    threshold: str
    error: float
    confidence: float
    accepted: int  # sampled labels at or above it
    errors: int  # of them, how many were wrong
    bound: float  # on the share of errors, at the confidence; not above `error`
    coverage: float  # the share of sampled labels that it accepts


class KindReport(msgspec.Struct, frozen=True):
    """What one kind's labels came to. Without a curve it is uncalibrated, and `reason` says why."""

    kind: str
    labels: int
    requests: int
    sampled: int  # independent labels that were drawn whatever their score
    right: float | None  # the weighted share that was right
    raw: Figures | None
    calibrated: Figures | None  # cross-fitted
    guarantee: Guarantee | None
    curve: Curve | None
    reason: str | None = None


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """A calibration with everything that speaks for it; stored whole, as it was fitted.

    Defaults are left out, so that a document from before one of them existed keeps its id.
    """

    model: str
    model_checksum: str
    error: float
    confidence: float
    least_labels: int
    kinds: tuple[KindReport, ...]
    review_below: str | None
    revision: int  # of this model's calibrations, from 1
    judge: str = REVIEWERS  # whose verdicts it was fitted to

    @property
    def id(self) -> str:
        """Derived from the content."""
        return f"cal_{hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]}"

    @property
    def curves(self) -> dict[str, Curve]:
        """The curves of the kinds that have one."""
        return {each.kind: each.curve for each in self.kinds if each.curve is not None}

    def calibration(self) -> Calibration:
        """What scores are calibrated with."""
        return Calibration(self.id, self.model, self.model_checksum, self.curves, self.review_below)
