"""How the review queue does: what waits and for how long, and how far reviewers agree."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from billing import review_opinions
from billing.review_items import OPEN_STATES
from billing.review_opinions import Agreement
from billing.tables import review_items


@dataclass(frozen=True, slots=True)
class Standing:
    """The queue at a moment. Ages are of open items; null where nothing waits."""

    waiting: int
    overdue: int
    age_us_median: int | None
    age_us_p95: int | None
    agreement: Agreement


def standing(connection: Connection, now_us: int) -> Standing:
    """Read the queue. Changes nothing."""
    rows = connection.execute(
        select(review_items.c.queued_at_us, review_items.c.due_at_us).where(
            review_items.c.state.in_(OPEN_STATES)
        )
    ).all()
    ages = sorted(now_us - row.queued_at_us for row in rows)
    return Standing(
        waiting=len(rows),
        overdue=sum(row.due_at_us <= now_us for row in rows),
        age_us_median=_quantile(ages, 50),
        age_us_p95=_quantile(ages, 95),
        agreement=review_opinions.agreement(connection),
    )


def _quantile(ascending: list[int], percent: int) -> int | None:
    """The nearest-rank quantile."""
    return ascending[-(-len(ascending) * percent // 100) - 1] if ascending else None
