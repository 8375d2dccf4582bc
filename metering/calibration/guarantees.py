"""Above which score text may be relied on, with a bound on how often that is wrong.

Fixed-sequence testing (Learn then Test, Angelopoulos et al. 2021): thresholds on a grid that is
fixed beforehand are tried from strict to loose, and the first that fails ends it, so that all that
passed hold together at the one chosen confidence. Each test is exact (Clopper and Pearson 1934).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from metering.calibration.curves import ONE, to_text
from metering.calibration.extras import extra
from metering.calibration.labels import Label
from metering.calibration.reports import Guarantee

GRID = 50  # ten thousandths between two thresholds
FIRST_PART = 8  # of the labels, by score, the part that the first test is of


def least_labels(error: float, confidence: float) -> int:
    """The fewest labels that can promise anything: all of them right, and the bound just met."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-error))


def upper_bound(errors: int, labels: int, confidence: float) -> float:
    """The one-sided Clopper-Pearson bound on a share of which `errors` in `labels` were seen."""
    if errors >= labels:
        return 1.0
    stats: Any = extra("scipy.stats")
    return float(stats.beta.ppf(confidence, errors + 1, labels - errors))


def guarantee(sampled: Sequence[Label], error: float, confidence: float) -> Guarantee | None:
    """The loosest threshold that holds, from independent labels; null where none does.

    It begins at the strictest threshold with labels enough to promise anything, and with an eighth
    of all: among fewer, one wrong answer of great confidence would end it. How many labels a
    threshold has depends on scores alone, so that this looks at no outcome.
    """
    least = max(least_labels(error, confidence), len(sampled) // FIRST_PART)
    held: Guarantee | None = None
    for threshold in range(ONE, -1, -GRID):
        accepted = [label for label in sampled if label.score >= threshold]
        if len(accepted) < least:
            continue
        errors = sum(not label.correct for label in accepted)
        bound = upper_bound(errors, len(accepted), confidence)
        if bound > error:
            break
        held = Guarantee(
            threshold=to_text(threshold),
            error=error,
            confidence=confidence,
            accepted=len(accepted),
            errors=errors,
            bound=bound,
            coverage=len(accepted) / len(sampled),
        )
    return held
