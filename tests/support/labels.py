"""Labels of a world whose truth is known: what calibration is tried on."""

from __future__ import annotations

import numpy as np

from metering.calibration import REQUEST, Label
from metering.calibration.curves import to_text

MODEL, CHECKSUM = "tiny", "sha256:" + "ab" * 32
AUDIT_PPM = 10_000
DOUBTFUL_BELOW = 7000


def truth(score: int) -> float:
    """How often text with a score of so many ten thousandths is right: less than it says."""
    return (score / 10_000) ** 3


def reviewed(
    answers: int, *, kind: str = REQUEST, seed: int = 0, units: int = 1, audit_ppm: int = AUDIT_PPM
) -> list[Label]:
    """The labels of so many answers: all doubtful ones, and a sample of the others."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(answers):
        score = int(10_000 * random.beta(9, 1.2))
        sampled = random.random() < audit_ppm / 1e6
        doubtful = score < DOUBTFUL_BELOW
        if not (doubtful or sampled):
            continue
        right = bool(random.random() < truth(score))  # of all units together: they err together
        found += [
            Label(
                request_id=f"req_{number}",
                unit_index=index if units > 1 else -1,
                model=MODEL,
                model_checksum=CHECKSUM,
                kind=kind,
                geo_mean=to_text(score),
                correct=right,
                inclusion_ppm=1_000_000 if doubtful else audit_ppm,
                sampled=sampled,
            )
            for index in range(units)
        ]
    return found
