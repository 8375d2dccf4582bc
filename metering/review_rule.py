"""Which finished requests a human should see. Pure.

Low scores go to review, missing scores too, and a random sample of all others: without it,
calibration would only ever learn from failures. The sample is drawn by hashing the request's id,
so it can be recomputed and its inclusion probability is known.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from decimal import Decimal

from metering.events import ConfidenceSummary

REQUEST_CONFIDENCE = "request_confidence"
UNIT_CONFIDENCE = "unit_confidence"
MISSING_SCORE = "missing_score"
AUDIT = "audit"

REQUEST_BELOW = Decimal("0.70")
UNIT_BELOW = Decimal("0.50")


@dataclass(frozen=True, slots=True)
class ReviewRule:
    """The thresholds above, and the audit sample's rate and seed."""

    audit_sample_rate: float = 0.01
    audit_seed: str = "audit/1"

    def reason(
        self,
        request_id: str,
        chosen_tokens: int,
        score: ConfidenceSummary | None,
        weakest_unit: str | None,
        review_below: str | None = None,
    ) -> str | None:
        """Why the request goes to review; null if it doesn't.

        `chosen_tokens` are the output's, those apart that a grammar forced: of an output without
        any, nothing can be doubted. `weakest_unit` is the lowest score among its complete units,
        `review_below` the raw score that a guarantee in force demands of the whole.
        """
        if not chosen_tokens:
            return None
        if score is None:
            return MISSING_SCORE
        if Decimal(score.calibrated or score.geo_mean) < REQUEST_BELOW:
            return REQUEST_CONFIDENCE
        if review_below is not None and Decimal(score.geo_mean) < Decimal(review_below):
            return REQUEST_CONFIDENCE
        if weakest_unit is not None and Decimal(weakest_unit) < UNIT_BELOW:
            return UNIT_CONFIDENCE
        return AUDIT if self.samples(request_id) else None

    def audit_ppm(self, request_id: str) -> int | None:
        """How likely this request was to be sampled, in millionths; null: it was not."""
        return max(1, round(self.audit_sample_rate * 1e6)) if self.samples(request_id) else None

    def samples(self, request_id: str) -> bool:
        """Whether the audit sample includes this request."""
        digest = hashlib.sha256(f"{self.audit_seed}:{request_id}".encode()).digest()
        return int.from_bytes(digest[:8]) < self.audit_sample_rate * 2**64
