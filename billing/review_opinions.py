"""What reviewers said of an item, one opinion each, and how far they agree with one another.

Most items want one opinion. A seeded share wants a second, and so does whoever is unsure; neither
of the two sees what the other said. Where they differ a third decides, seeing both.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, func, insert, select

from billing.review_items import Reason, ReviewItem, Verdict
from billing.review_tables import review_opinions
from metering import clock

SECOND_SEED = "second-opinion/1"
# Of opinions that differ when the time is over, the one that is kindest to the tenant stands.
_STRICTEST = (Verdict.REJECT, Verdict.EDIT, Verdict.APPROVE)


@dataclass(frozen=True, slots=True)
class Opinion:
    """One reviewer's verdict on an item."""

    reviewer_id: str
    claim_token: int
    verdict: Verdict
    reasons: tuple[Reason, ...]
    note: str | None
    edited_output: str | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the verdicts of first and second opinions compare, over the items that have both.

    Corrections that differ agree here: the figures are of verdicts, and texts may be erased.
    `kappa` is Cohen's: 1 where they always agree, 0 where they agree as often as chance would have
    it, null without two opinions or where everybody always says the same.
    """

    items: int
    agreed: int
    kappa: Fraction | None


def wanted(item_id: str, share: float) -> int:
    """How many opinions an item wants at first. A hash decides, so it can be worked out again."""
    digest = hashlib.sha256(f"{SECOND_SEED}:{item_id}".encode()).digest()
    return 2 if int.from_bytes(digest[:8]) < share * 2**64 else 1


def add(connection: Connection, item_id: str, number: int, opinion: Opinion) -> None:
    """Keep an item's first, second or third opinion; the database refuses two of one reviewer."""
    connection.execute(
        insert(review_opinions).values(
            item_id=item_id,
            number=number,
            reviewer_id=opinion.reviewer_id,
            claim_token=opinion.claim_token,
            verdict=opinion.verdict.value,
            reasons=msgspec.json.encode(opinion.reasons).decode(),
            note=opinion.note,
            edited_output=opinion.edited_output,
            given_at_us=clock.now_us(),
        )
    )


def of_item(connection: Connection, item_id: str) -> list[Opinion]:
    """An item's opinions, in the order in which they were given."""
    rows = connection.execute(
        select(review_opinions)
        .where(review_opinions.c.item_id == item_id)
        .order_by(review_opinions.c.number)
    )
    return [from_row(row) for row in rows]


def from_row(row: Row[*tuple[Any, ...]]) -> Opinion:
    """An opinion from its row."""
    return Opinion(
        reviewer_id=row.reviewer_id,
        claim_token=row.claim_token,
        verdict=Verdict(row.verdict),
        reasons=tuple(map(Reason, msgspec.json.decode(row.reasons))),
        note=row.note,
        edited_output=row.edited_output,
    )


def shown(connection: Connection, item: ReviewItem) -> list[Opinion]:
    """The opinions that a reviewer may see: none while a second one is to be given unknowing."""
    if item.is_open and item.opinions < 2:
        return []
    return of_item(connection, item.id)


def decisive(given: Sequence[Opinion], wanted: int) -> Opinion | None:
    """The opinion that decides, or null while another one is needed. Pure.

    Where two agree the later one stands, which knows what the first knew; where they differ, in the
    verdict or in the corrected text, a third decides, and nobody is asked after it.
    """
    if len(given) < wanted or not given:
        return None
    if len(given) == 2 and _said(given[0]) != _said(given[1]):
        return None
    return given[-1]


def _said(opinion: Opinion) -> tuple[Verdict, str | None]:
    return opinion.verdict, opinion.edited_output


def standing(given: Sequence[Opinion]) -> Opinion | None:
    """The opinion that stands when no further one came in time; null where there is none. Pure.

    Of two corrections that differ it is the later one: so it was before texts were compared, and so
    it stays when they are erased.
    """
    return min(reversed(given), key=lambda each: _STRICTEST.index(each.verdict), default=None)


def agreement(connection: Connection) -> Agreement:
    """How first and second opinions compare, over everything that was ever reviewed twice."""
    first, second = review_opinions.alias("first"), review_opinions.alias("second")
    rows = connection.execute(
        select(first.c.verdict, second.c.verdict, func.count())
        .join(second, second.c.item_id == first.c.item_id)
        .where(first.c.number == 1, second.c.number == 2)
        .group_by(first.c.verdict, second.c.verdict)
    )
    return _agreement(Counter({(one, other): count for one, other, count in rows}))


def _agreement(pairs: Counter[tuple[str, str]]) -> Agreement:
    items = sum(pairs.values())
    agreed = sum(count for (one, other), count in pairs.items() if one == other)
    if not items:
        return Agreement(0, 0, None)
    firsts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for (one, other), count in pairs.items():
        firsts[one] += count
        seconds[other] += count
    by_chance = Fraction(sum(firsts[each] * seconds[each] for each in firsts), items * items)
    observed = Fraction(agreed, items)
    kappa = None if by_chance == 1 else (observed - by_chance) / (1 - by_chance)
    return Agreement(items, agreed, kappa)
