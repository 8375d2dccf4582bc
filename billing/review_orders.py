"""Whether a human looks at a finished output, at whose cost, and what becomes of it meanwhile.

A tenant pays for doubts about its output only if it opted in, and only within its cap. A score that
we failed to take, and our own samples, are ours to pay. Where a tenant lets doubtful answers be
held they wait for the verdict; our samples never keep anybody waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from billing.money import round_nano
from billing.receipt_documents import ReviewTerms
from billing.review_items import Delivery
from billing.tariffs import Tariff
from metering.events import RequestSummary
from metering.review_rule import AUDIT, MISSING_SCORE

CERTAIN_PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class ReviewOrder:
    """An output that goes to review."""

    reason: str
    fee_nano: int
    paid_by: str  # "tenant" or "operator"
    delivery: Delivery
    inclusion_ppm: int | None  # how likely it was to come here; null: not recorded
    sampled: bool  # by the audit, whatever its score

    @property
    def by_tenant(self) -> bool:
        """Whether the tenant pays."""
        return self.paid_by == "tenant"

    @property
    def terms(self) -> ReviewTerms:
        """What the receipt says of it."""
        return ReviewTerms(self.reason, self.fee_nano, self.paid_by, self.delivery.value)

    def at_our_cost(self) -> ReviewOrder:
        """The same at the operator's cost: the tenant's means did not cover the fee."""
        return replace(self, paid_by="operator")


def order(
    summary: RequestSummary,
    tariff: Tariff,
    *,
    opts_in: Callable[[], bool],
    held: bool,
    cap_admits: Callable[[int], bool],
) -> ReviewOrder | None:
    """What the review rule, the tenant's consent and its cap come to; null: nobody looks."""
    reason = summary.review_reason
    if reason is None or not summary.output_tokens:
        return None
    fee_nano = round_nano(tariff.review.fee) if tariff.review else 0
    sampled = summary.audit_ppm is not None
    delivery = Delivery.HELD if held else Delivery.NOW
    if reason == MISSING_SCORE:
        return ReviewOrder(reason, fee_nano, "operator", delivery, CERTAIN_PPM, sampled)
    if reason != AUDIT and opts_in() and cap_admits(fee_nano):
        return ReviewOrder(reason, fee_nano, "tenant", delivery, CERTAIN_PPM, sampled)
    if reason == AUDIT or sampled:
        # Of doubtful outputs too, or calibration would not see those of tenants that don't pay.
        return ReviewOrder(AUDIT, fee_nano, "operator", Delivery.NOW, summary.audit_ppm, sampled)
    return None
