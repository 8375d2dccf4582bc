"""What the database itself refuses of reviews: another verdict, text or payer than there was.

What an item was queued with never changes, and once it is resolved or has lapsed nothing of it
does. An opinion never changes. Of both, the texts may be erased, and only that.
"""

from __future__ import annotations

from billing.triggers import Refusal, allow, changes, refuse, rewrites

AT_QUEUEING = (
    *("id", "request_id", "tenant_id", "rule_version", "reason", "geo_mean", "calibrated"),
    *("calibration", "inclusion_ppm", "sampled", "fee_nano", "currency", "paid_by", "delivery"),
    *("queued_at_us", "due_at_us"),
)
AT_THE_END = (
    *("state", "claimed_by", "claim_token", "claim_expires_at_us", "verdict", "reasons"),
    *("opinions", "opinions_wanted", "resolved_by", "resolved_at_us"),
)
OPINION = (
    *("item_id", "number", "reviewer_id", "claim_token", "verdict", "reasons", "given_at_us"),
)
TEXTS = ("note", "edited_output")

REFUSALS = (
    Refusal(
        "review_items_terms",
        "UPDATE",
        "review_items",
        "what a review was queued with never changes",
        changes(*AT_QUEUEING),
    ),
    Refusal(
        "review_items_final_once",
        "UPDATE",
        "review_items",
        "a review that has ended never changes",
        f"OLD.state IN ('resolved', 'lapsed') AND ({changes(*AT_THE_END)} OR {rewrites(*TEXTS)})",
    ),
    Refusal("review_items_kept", "DELETE", "review_items", "a review is never deleted", None),
    Refusal(
        "review_opinions_given",
        "UPDATE",
        "review_opinions",
        "an opinion never changes",
        f"{changes(*OPINION)} OR {rewrites(*TEXTS)}",
    ),
    Refusal("review_opinions_kept", "DELETE", "review_opinions", "an opinion is kept", None),
)


def create(dialect: str) -> list[str]:
    """The statements that create the triggers, for `sqlite` or `postgresql`."""
    return refuse(dialect, REFUSALS)


def drop(dialect: str) -> list[str]:
    """The statements that undo `create`."""
    return allow(dialect, REFUSALS)
