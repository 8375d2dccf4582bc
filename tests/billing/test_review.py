"""Reviews: claimed by one, resolved once, paid on any verdict, refunded on a rejection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from billing_cases import summary, tariff, unit
from billing_sweeps import lapse_reviews
from billing_world import (
    FAR_US,
    STARTED_US,
    add_request,
    add_tenant,
    balances,
    books_balance,
    ended,
    moved,
    settlement,
)
from sqlalchemy import Connection, Engine

from billing import receipts, review
from billing.errors import InvalidVerdict, ReviewConflict, ReviewItemNotFound
from billing.gate import HoldGate
from billing.money import NANO
from billing.review import LEASE_US, SLA_US, ReviewState, Verdict
from billing.settlement import Settlement
from billing.signing import Signer
from metering import clock
from metering.database import transaction

TERMS = tariff(input={"per_million": "0.1"}, output={"per_million": "0.4"}, review={"fee": "0.01"})
FEE = 10_000_000
INPUT, OUTPUT = 2_000, 4_000
ITEM = "rev_req_1"


class Clock:
    """A clock that stands until it is moved."""

    now_us = STARTED_US

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(clock, "now_us", stopped)
    return stopped


@pytest.fixture
def settler(tmp_path: Path) -> Settlement:
    return settlement(tmp_path)


@pytest.fixture
def signer(settler: Settlement) -> Signer:
    return settler._signer


@pytest.fixture
def connection(database: Engine, time: Clock, settler: Settlement) -> Iterator[Connection]:
    """A queued item of an opted-in tenant, and one at the operator's cost."""
    with transaction(database) as opened:
        settler._signer.register(opened)
        for tenant, reason in (("ten_1", "request_confidence"), ("ten_2", "audit")):
            add_tenant(opened, tenant, opt_in=tenant == "ten_1", pays=TERMS)
            request = add_request(opened, tenant.replace("ten", "req"), tenant)
            HoldGate().admit(opened, request, expires_at_us=FAR_US)
            ended(opened, settler, summary(request_id=request.id, review_reason=reason))
    with transaction(database) as opened:
        yield opened
        books_balance(opened)


def resolve(
    connection: Connection,
    signer: Signer,
    verdict: str,
    token: int,
    *,
    item_id: str = ITEM,
    reviewer: str = "key_anna",
    edited: str | None = None,
    **fields: Any,
) -> review.ReviewItem:
    fields.setdefault("reasons", () if verdict == "approve" else ("incorrect",))
    fields.setdefault("note", "looked at it")
    return review.resolve(
        connection,
        item_id,
        reviewer,
        token,
        verdict=verdict,
        signer=signer,
        edited_output=edited,
        **fields,
    )


@pytest.mark.parametrize(("verdict", "edited"), [("approve", None), ("edit", "better")])
def test_any_verdict_makes_the_fee_the_reviewers_due(
    connection: Connection, signer: Signer, verdict: str, edited: str | None
) -> None:
    token = review.claim(connection, ITEM, "key_anna")
    item = resolve(connection, signer, verdict, token, edited=edited)
    assert (item.state, item.verdict, item.resolved_by) == ("resolved", verdict, "key_anna")
    assert item.edited_output == edited
    assert balances(connection) == {
        "tenant_credit": NANO - FEE - INPUT - OUTPUT,
        "earnings": INPUT + OUTPUT,
    }
    assert balances(connection, None)["reviewer_payable"] == FEE


def test_a_rejection_also_gives_back_what_the_output_cost(
    connection: Connection, signer: Signer
) -> None:
    token = review.claim(connection, ITEM, "key_anna")
    resolve(connection, signer, "reject", token)
    assert balances(connection) == {"tenant_credit": NANO - FEE - INPUT, "earnings": INPUT}
    (signed,) = receipts.adjustments(connection, "req_1")
    receipt = receipts.receipt(connection, None, "req_1")
    verified = receipts.verify_adjustment(signed, receipts.public_keys(connection))
    assert receipt is not None
    assert verified.receipt_sha256 == receipt["sha256"]
    assert (verified.reason, verified.amount_nano) == ("review_rejected", -OUTPUT)


def test_a_rejection_never_gives_back_more_than_was_paid(
    database: Engine, settler: Settlement, time: Clock, signer: Signer
) -> None:
    capped = tariff(name="capped", output={"per_million": "0.4"}, request={"maximum": "0.000003"})
    with transaction(database) as connection:
        signer.register(connection)
        add_tenant(connection, pays=capped)
        request = add_request(connection)
        HoldGate().admit(connection, request, expires_at_us=FAR_US)
        ended(connection, settler, summary(unit(10), review_reason="audit"))
        token = review.claim(connection, ITEM, "key_anna")
        resolve(connection, signer, "reject", token)
        assert balances(connection) == {"tenant_credit": NANO}
        books_balance(connection)


def test_the_receipt_itself_never_changes(connection: Connection, signer: Signer) -> None:
    before = receipts.receipt(connection, None, "req_1")
    resolve(connection, signer, "reject", review.claim(connection, ITEM, "key_anna"))
    assert receipts.receipt(connection, None, "req_1") == before


def test_the_same_verdict_again_changes_nothing(connection: Connection, signer: Signer) -> None:
    token = review.claim(connection, ITEM, "key_anna")
    first = resolve(connection, signer, "reject", token)
    booked = moved(connection, "req_1")
    assert resolve(connection, signer, "reject", token) == first
    assert moved(connection, "req_1") == booked
    assert len(receipts.adjustments(connection, "req_1")) == 1
    for verdict, other_token, reviewer in (
        ("approve", token, "key_anna"),
        ("reject", token + 1, "key_anna"),
        ("reject", token, "key_ben"),
    ):
        with pytest.raises(ReviewConflict):
            resolve(connection, signer, verdict, other_token, reviewer=reviewer)


def test_a_claim_is_for_one_reviewer_until_its_lease_is_over(
    connection: Connection, signer: Signer, time: Clock
) -> None:
    first = review.claim(connection, ITEM, "key_anna")
    with pytest.raises(ReviewConflict, match="another reviewer"):
        review.claim(connection, ITEM, "key_ben")
    time.now_us += LEASE_US
    second = review.claim(connection, ITEM, "key_ben")
    assert second == first + 1
    with pytest.raises(ReviewConflict, match="token"):
        resolve(connection, signer, "approve", first)
    resolve(connection, signer, "approve", second, reviewer="key_ben")


def test_a_late_verdict_counts_while_nobody_took_the_item_over(
    connection: Connection, signer: Signer, time: Clock
) -> None:
    token = review.claim(connection, ITEM, "key_anna")
    time.now_us += 2 * LEASE_US
    assert resolve(connection, signer, "approve", token).verdict is Verdict.APPROVE


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        {"edited": "worse"},
        {"reasons": ["unsafe"]},
        {"reasons": ["incorrect", "unsafe"]},
        {"note": "looked again"},
        {"verdict": "reject", "edited": None},
    ],
)
def test_another_opinion_with_the_same_token_is_refused(
    connection: Connection, signer: Signer, other: dict[str, Any], second: bool
) -> None:
    """Whether the first one decided or waits for a second."""
    token = review.claim(connection, ITEM, "key_anna")
    given = {"verdict": "edit", "edited": "better", "second_opinion": second}
    first = resolve(connection, signer, token=token, **given)
    with pytest.raises(ReviewConflict, match="another opinion"):
        resolve(connection, signer, token=token, **given | other)
    assert resolve(connection, signer, token=token, **given) == first
    assert first.edited_output == (None if second else "better")


def test_claiming_ones_own_item_again_voids_the_older_token(
    connection: Connection, signer: Signer
) -> None:
    older = review.claim(connection, ITEM, "key_anna")
    newer = review.claim(connection, ITEM, "key_anna")
    with pytest.raises(ReviewConflict):
        resolve(connection, signer, "approve", older)
    resolve(connection, signer, "approve", newer)


def test_an_item_must_be_claimed_before_it_is_resolved(
    connection: Connection, signer: Signer
) -> None:
    with pytest.raises(ReviewConflict):
        resolve(connection, signer, "approve", 0)
    assert balances(connection)["review_pool"] == FEE


def test_a_final_item_is_never_claimed(connection: Connection, signer: Signer) -> None:
    resolve(connection, signer, "approve", review.claim(connection, ITEM, "key_anna"))
    with pytest.raises(ReviewConflict, match="resolved"):
        review.claim(connection, ITEM, "key_ben")


def test_a_fee_that_lapses_goes_back_to_the_tenant(
    connection: Connection, signer: Signer, time: Clock
) -> None:
    assert lapse_reviews(connection, time.now_us + SLA_US - 1, signer) == 0
    assert lapse_reviews(connection, time.now_us + SLA_US, signer) == 2
    assert lapse_reviews(connection, time.now_us + SLA_US, signer) == 0
    assert balances(connection)["tenant_credit"] == NANO - INPUT - OUTPUT
    (signed,) = receipts.adjustments(connection, "req_1")
    verified = receipts.verify_adjustment(signed, receipts.public_keys(connection))
    assert (verified.reason, verified.amount_nano) == ("review_lapsed", -FEE)
    with pytest.raises(ReviewConflict, match="lapsed"):
        review.claim(connection, ITEM, "key_anna")


def test_the_operators_fee_goes_back_to_the_operator(
    connection: Connection, signer: Signer, time: Clock
) -> None:
    lapse_reviews(connection, time.now_us + SLA_US, signer)
    assert balances(connection, "ten_2") == {
        "tenant_credit": NANO - INPUT - OUTPUT,
        "earnings": INPUT + OUTPUT,
    }
    (signed,) = receipts.adjustments(connection, "req_2")
    assert signed["adjustment"]["amount"] == "0"


def test_an_item_under_review_does_not_lapse_before_its_lease(
    connection: Connection, signer: Signer, time: Clock
) -> None:
    start = time.now_us
    time.now_us = start + SLA_US - 1
    token = review.claim(connection, ITEM, "key_anna")
    time.now_us = start + SLA_US
    assert lapse_reviews(connection, time.now_us, signer) == 1  # the other one
    with pytest.raises(ReviewConflict, match="time is over"):
        review.claim(connection, ITEM, "key_ben")
    resolve(connection, signer, "approve", token)


@pytest.mark.parametrize(
    ("verdict", "edited"),
    [("maybe", None), ("edit", None), ("approve", "text"), ("edit", "a\0b")],
)
def test_a_verdict_is_whole_or_refused(
    connection: Connection, signer: Signer, verdict: str, edited: str | None
) -> None:
    token = review.claim(connection, ITEM, "key_anna")
    with pytest.raises(InvalidVerdict):
        resolve(connection, signer, verdict, token, edited=edited)
    assert review.item(connection, ITEM).state is ReviewState.CLAIMED


def test_an_edit_may_leave_nothing(connection: Connection, signer: Signer) -> None:
    token = review.claim(connection, ITEM, "key_anna")
    assert resolve(connection, signer, "edit", token, edited="").edited_output == ""


def test_unknown_items_are_not_found(connection: Connection, signer: Signer) -> None:
    with pytest.raises(ReviewItemNotFound):
        review.item(connection, "rev_none")
    with pytest.raises(ReviewItemNotFound):
        review.claim(connection, "rev_none", "key_anna")
    with pytest.raises(ReviewItemNotFound):
        resolve(connection, signer, "approve", 1, item_id="rev_none")


def test_the_queue_is_read_page_by_page_oldest_first(
    connection: Connection, settler: Settlement, time: Clock
) -> None:
    for number in range(3, 8):
        time.now_us += number % 2  # some are queued in the same microsecond
        request = add_request(connection, f"req_{number}", "ten_1")
        HoldGate().admit(connection, request, expires_at_us=FAR_US)
        ended(connection, settler, summary(request_id=request.id, review_reason="audit"))
    whole = review.items(connection, ReviewState.QUEUED, 50)
    assert [item.queued_at_us for item in whole] == sorted(item.queued_at_us for item in whole)
    paged: list[review.ReviewItem] = []
    while page := review.items(
        connection,
        ReviewState.QUEUED,
        3,
        (paged[-1].queued_at_us, paged[-1].id) if paged else None,
    ):
        paged += page
    assert paged == whole
    assert len(whole) == 7
    assert review.items(connection, ReviewState.RESOLVED, 50) == []


def test_final_items_are_read_newest_first(
    connection: Connection, signer: Signer, time: Clock
) -> None:
    lapse_reviews(connection, time.now_us + SLA_US, signer)
    newest, oldest = review.items(connection, ReviewState.LAPSED, 50)
    cursor = (newest.queued_at_us, newest.id)
    assert review.items(connection, ReviewState.LAPSED, 50, cursor) == [oldest]
