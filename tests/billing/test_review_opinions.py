"""Opinions, accounts, caps and what is kept from whom: the review queue at depth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from billing_cases import unit
from billing_sweeps import lapse_reviews
from billing_world import add_tenant, balances, books_balance
from review_desk import FEE_NANO, REVIEWED, Clock, ReviewDesk, due, outcomes, pool
from sqlalchemy import Connection, Engine, func, insert, select

from billing import (
    lineages,
    receipts,
    retention,
    review,
    review_caps,
    review_items,
    review_opinions,
    review_outcomes,
    review_standing,
    reviewers,
)
from billing.credit_tables import notices
from billing.differences import Difference
from billing.errors import InvalidPayout, InvalidVerdict, ReviewConflict
from billing.money import NANO
from billing.reconciliation import reconcile
from billing.retention import Chosen
from billing.review_items import Delivery, Reason, ReviewState, Verdict
from billing.review_tables import review_payouts
from metering import clock
from metering.calibration_tables import confidence_labels
from metering.database import snapshot, transaction


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(clock, "now_us", stopped)
    return stopped


@pytest.fixture
def desk(database: Engine, tmp_path: Path, time: Clock) -> ReviewDesk:
    made = ReviewDesk(database, tmp_path)
    made.tenant()
    return made


def test_two_who_agree_decide_and_share_the_fee(desk: ReviewDesk) -> None:
    request_id = desk.answer()
    asked = desk.judge(request_id, "key_anna", "reject", second_opinion=True)
    assert (asked.state, asked.opinions, asked.opinions_wanted) == ("queued", 1, 2)
    with pytest.raises(ReviewConflict, match="another reviewer's is wanted"):
        desk.claim(request_id, "key_anna")
    with snapshot(desk.database) as connection:
        assert pool(connection) == FEE_NANO
        assert review_opinions.shown(connection, asked) == []  # the second is given unknowing
    final = desk.judge(request_id, "key_ben", "reject", reasons=["unsafe", "style"])
    assert (final.verdict, final.resolved_by) == (Verdict.REJECT, "key_ben")
    assert final.reasons == (Reason.UNSAFE, Reason.STYLE)
    with snapshot(desk.database) as connection:
        assert due(connection) == {"key_anna": FEE_NANO // 2 + 1, "key_ben": FEE_NANO // 2}
        assert len(review_opinions.shown(connection, final)) == 2
        books_balance(connection)
        (signed,) = receipts.adjustments(connection, request_id)
    said = signed["adjustment"]["review"]
    assert (said["reasons"], said["opinions"]) == (["unsafe", "style"], 2)


@pytest.mark.parametrize("ends", ["third", "time"])
def test_where_two_corrections_differ_a_third_decides(
    desk: ReviewDesk, time: Clock, ends: str
) -> None:
    request_id = desk.answer(output="2+2=5")
    first = desk.judge(request_id, "key_anna", "edit", edited_output="4", second_opinion=True)
    waits = desk.judge(request_id, "key_ben", "edit", edited_output="6")
    assert (first.state, waits.state, waits.opinions) == ("queued", "queued", 2)
    if ends == "third":
        final = desk.judge(request_id, "key_carl", "edit", edited_output="4")
        expected = ("4", "key_carl", 3)
    else:
        time.now_us = waits.due_at_us
        with transaction(desk.database) as connection:
            assert lapse_reviews(connection, time.now_us, desk.signer) == 1
            final = review_items.item(connection, waits.id)
        expected = ("6", "key_ben", 2)
    assert (final.edited_output, final.resolved_by, final.opinions) == expected
    with transaction(desk.database) as connection:
        assert review_opinions.agreement(connection).agreed == 1  # of verdicts
        assert faults(connection) == []
        assert retention.erase(connection, "ten_1", Chosen()) == 1
        assert faults(connection) == []


def faults(connection: Connection) -> list[Difference]:
    """What the comparison finds of reviews."""
    found = reconcile(connection).differences
    return [each for each in found if each.check.startswith("review's")]


def test_a_tenant_is_told_of_our_own_samples_only_where_they_changed_something(
    desk: ReviewDesk, time: Clock
) -> None:
    approved, edited, late = [desk.answer(unit(8), reason="audit", audit_ppm=10_000) for _ in "abc"]
    desk.judge(approved, "key_anna", "approve")
    desk.judge(edited, "key_anna", "edit")
    with snapshot(desk.database) as connection:
        time.now_us = review_items.item(connection, f"rev_{late}").due_at_us
    with transaction(desk.database) as connection:
        assert lapse_reviews(connection, time.now_us, desk.signer) == 1
    with snapshot(desk.database) as connection:
        told = connection.execute(select(notices.c.type, notices.c.data)).all()
        shown = [review_outcomes.outcome(connection, each) for each in (approved, edited, late)]
    assert [(row.type, msgspec.json.decode(row.data)["request_id"]) for row in told] == [
        ("review.resolved", edited)
    ]
    assert [each is not None for each in shown] == [False, True, False]


def test_where_two_differ_a_third_decides_and_sees_both(desk: ReviewDesk) -> None:
    request_id = desk.answer()
    desk.judge(request_id, "key_anna", "approve", second_opinion=True)
    waits = desk.judge(request_id, "key_ben", "reject")
    assert waits.state is ReviewState.QUEUED
    with snapshot(desk.database) as connection:
        seen = review_opinions.shown(connection, waits)
        assert [each.verdict for each in seen] == ["approve", "reject"]
    final = desk.judge(request_id, "key_cleo", "edit")
    assert (final.verdict, final.edited_output, final.opinions) == (Verdict.EDIT, "better", 3)
    with snapshot(desk.database) as connection:
        assert sum(due(connection).values()) == FEE_NANO
        agreed = review_opinions.agreement(connection)
    assert (agreed.items, agreed.agreed) == (1, 0)


def test_agreement_is_told_beside_what_chance_would_have(desk: ReviewDesk) -> None:
    for first, second in [("approve", "approve")] * 3 + [("reject", "reject"), ("reject", "edit")]:
        request_id = desk.answer()
        desk.judge(request_id, "key_anna", first, second_opinion=True)
        desk.judge(request_id, "key_ben", second)
    with snapshot(desk.database) as connection:
        found = review_standing.standing(connection, clock.now_us() + 7)
    assert (found.agreement.items, found.agreement.agreed) == (5, 4)
    by_chance = (3 * 3 + 2 * 1) / 25
    assert float(found.agreement.kappa or 0) == pytest.approx((0.8 - by_chance) / (1 - by_chance))
    assert (found.waiting, found.age_us_median, found.overdue) == (1, 7, 0)


def test_an_opinion_that_waited_for_another_in_vain_stands(desk: ReviewDesk, time: Clock) -> None:
    alone, differing = desk.answer(), desk.answer()
    desk.judge(alone, "key_anna", "edit", second_opinion=True)
    desk.judge(differing, "key_anna", "reject", second_opinion=True)
    desk.judge(differing, "key_ben", "approve")
    time.now_us += review.SLA_US
    with transaction(desk.database) as connection:
        assert lapse_reviews(connection, time.now_us, desk.signer) == 2
        found = [review.item(connection, f"rev_{each}") for each in (alone, differing)]
        assert [each.verdict for each in found] == ["edit", "reject"]
        assert outcomes(connection) == {alone: 1, differing: 1}
        books_balance(connection)


@pytest.mark.parametrize(
    ("verdict", "fields"),
    [
        ("reject", {"reasons": []}),
        ("edit", {"reasons": []}),
        ("approve", {"reasons": ["style"]}),
        ("reject", {"reasons": ["ugly"]}),
        ("reject", {"reasons": ["other"]}),
    ],
)
def test_a_verdict_without_its_reasons_is_refused(
    desk: ReviewDesk, verdict: str, fields: dict[str, list[str]]
) -> None:
    request_id = desk.answer()
    with pytest.raises(InvalidVerdict):
        desk.judge(request_id, "key_anna", verdict, **fields)


def test_a_share_of_items_wants_a_second_opinion_from_the_start() -> None:
    wanted = [review_opinions.wanted(f"rev_{number}", 0.1) for number in range(2000)]
    assert 140 < wanted.count(2) < 260
    assert {review_opinions.wanted(f"rev_{number}", 0.0) for number in range(100)} == {1}


def test_a_reviewer_is_paid_once_for_each_reference_and_never_more_than_is_due(
    desk: ReviewDesk,
) -> None:
    desk.judge(desk.answer(), "key_anna", "approve")
    with transaction(desk.database) as connection:
        lineages.succeed(connection, "key_anna", "key_anna2")
        lineages.succeed(connection, "key_anna2", "key_anna3")
        assert lineages.of_key(connection, "key_anna3") == "key_anna"
    with transaction(desk.database) as connection:
        part, is_news = reviewers.pay_out(
            connection, "key_anna", "USD", reference="a", amount_nano=1
        )
        assert is_news
        again = reviewers.pay_out(connection, "key_anna", "USD", reference="a", amount_nano=1)
        assert again == (part, False)
        rest, _ = reviewers.pay_out(connection, "key_anna", "USD", reference="b")
        assert rest.amount_nano == FEE_NANO - 1
        (account,) = reviewers.listing(connection)
        assert (account.earned_nano, account.due_nano) == (FEE_NANO, 0)
        assert balances(connection, None) == {
            "cash": FEE_NANO - NANO
        }  # the tenant's credit came in
        assert reviewers.verdicts(connection) == {"key_anna": {Verdict.APPROVE: 1}}
        assert {each.reference for each in reviewers.payouts(connection, None, 5)} == {"a", "b"}
        books_balance(connection)
    for fields in (
        {"reference": "a", "amount_nano": 2},
        {"reference": "c", "amount_nano": 1},
        {"reference": "c", "amount_nano": 0},
        {"reference": ""},
    ):
        with transaction(desk.database) as connection, pytest.raises(InvalidPayout):
            reviewers.pay_out(connection, "key_anna", "USD", **fields)
    with transaction(desk.database) as connection, pytest.raises(InvalidPayout, match="never"):
        reviewers.pay_out(connection, "key_ben", "USD", reference="a")


def test_references_that_only_end_differently_are_two_payouts(desk: ReviewDesk) -> None:
    """Given reviewers as keys are named, and references as long as they may be."""
    names = ["key_" + "0" * 31 + last for last in "12"]
    for name in names:
        desk.judge(desk.answer(), name, "approve")
    references = ["a" * (reviewers.REFERENCE_CHARS_MAX - 1) + last for last in "12"]
    wanted = [(name, reference) for name in names for reference in references]
    with transaction(desk.database) as connection:
        for number, (name, reference) in enumerate(wanted, start=1):
            for is_news in (True, False):
                payout, was_news = reviewers.pay_out(
                    connection, name, "USD", reference=reference, amount_nano=number
                )
                assert (payout.reviewer_id, payout.reference) == (name, reference)
                assert (payout.amount_nano, was_news) == (number, is_news)
        assert due(connection) == {names[0]: FEE_NANO - 1 - 2, names[1]: FEE_NANO - 3 - 4}
        assert len({each.id for each in reviewers.payouts(connection, None, 5)}) == len(wanted)
        books_balance(connection)


def test_a_payout_of_before_is_still_paid_once(desk: ReviewDesk) -> None:
    """Its id was the reviewer and the reference, cut where they were too long."""
    desk.judge(desk.answer(), "key_anna", "approve")
    earlier = {
        "id": f"payout/key_anna/{'a' * 100}"[:128],
        "reviewer_id": "key_anna",
        "currency": "USD",
        "amount_nano": 5,
        "reference": "a" * 100,
        "paid_at_us": 1,
    }
    with transaction(desk.database) as connection:
        connection.execute(insert(review_payouts).values(**earlier))
        again = reviewers.pay_out(connection, "key_anna", "USD", reference="a" * 100)
        assert again == (reviewers.Payout(**earlier), False)
        assert due(connection) == {"key_anna": FEE_NANO}


def test_reviews_cost_a_tenant_no_more_than_its_cap_in_a_month(
    desk: ReviewDesk, time: Clock
) -> None:
    def told() -> int:
        with snapshot(desk.database) as connection:
            query = select(func.count()).where(notices.c.type == "review.cap_reached")
            return int(connection.scalar(query) or 0)

    with transaction(desk.database) as connection:
        review_caps.limit(connection, "ten_1", 2 * FEE_NANO + 1)
        assert review_caps.cap(connection, "ten_1") == 2 * FEE_NANO + 1
    reviewed = [desk.answer() for _ in range(3)]
    beyond = desk.answer(audit_ppm=10_000)
    with snapshot(desk.database) as connection:
        items = [review.of_request(connection, each) for each in reviewed]
        assert [each is not None and each.paid_by for each in items] == ["tenant", "tenant", False]
        sampled = review.of_request(connection, beyond)
        assert sampled is not None
        assert (sampled.reason, sampled.paid_by) == ("audit", "operator")
        assert (sampled.inclusion_ppm, sampled.sampled) == (10_000, True)
    assert told() == 1
    time.now_us += review.SLA_US
    with transaction(desk.database) as connection:
        lapse_reviews(connection, time.now_us, desk.signer)  # what lapsed cost nothing
    assert isinstance(desk.answer(), str)
    time.now_us += 32 * review.SLA_US
    with transaction(desk.database) as connection:
        lapse_reviews(connection, time.now_us, desk.signer)
        review_caps.limit(connection, "ten_1", 0)
    none = desk.answer()
    with transaction(desk.database) as connection:
        assert review.of_request(connection, none) is None
        review_caps.limit(connection, "ten_1", None)
    again = desk.answer()
    with snapshot(desk.database) as connection:
        assert review.of_request(connection, again) is not None
        books_balance(connection)
    assert told() == 2


@pytest.mark.parametrize(
    ("judge", "withheld", "corrected"),
    [
        (lambda desk, item: desk.judge(item, "key_anna", "approve"), False, None),
        (lambda desk, item: desk.judge(item, "key_anna", "edit"), False, "better"),
        (lambda desk, item: desk.judge(item, "key_anna", "reject"), True, None),
        (None, False, None),
    ],
    ids=["approved", "corrected", "rejected", "lapsed"],
)
def test_a_held_answer_is_kept_back_until_the_verdict(
    desk: ReviewDesk,
    time: Clock,
    judge: Callable[[ReviewDesk, str], object] | None,
    withheld: bool,
    corrected: str | None,
) -> None:
    request_id = desk.answer(held=True)
    with snapshot(desk.database) as connection:
        outcome = review_outcomes.outcome(connection, request_id)
        document = receipts.receipt(connection, "ten_1", request_id)
    assert outcome is not None
    assert (outcome.withheld, outcome.delivery) == (True, Delivery.HELD)
    assert document is not None
    assert document["receipt"]["review"]["delivery"] == "held"
    if judge is None:
        time.now_us += review.SLA_US
        with transaction(desk.database) as connection:
            lapse_reviews(connection, time.now_us, desk.signer)
    else:
        judge(desk, request_id)
    with snapshot(desk.database) as connection:
        outcome = review_outcomes.outcome(connection, request_id)
    assert outcome is not None
    assert (outcome.withheld, outcome.corrected_output) == (withheld, corrected)


def test_samples_of_ours_keep_nobody_waiting_and_are_told_of_when_they_change_something(
    desk: ReviewDesk,
) -> None:
    kept, changed = (desk.answer(reason="audit", audit_ppm=10_000, held=True) for _ in range(2))
    missing = desk.answer(reason="missing_score", confidence=None, held=True)
    with snapshot(desk.database) as connection:
        assert review_outcomes.outcome(connection, kept) is None
        outcome = review_outcomes.outcome(connection, missing)
    assert outcome is not None
    assert outcome.withheld
    desk.judge(kept, "key_anna", "approve")
    desk.judge(changed, "key_anna", "edit")
    with snapshot(desk.database) as connection:
        assert review_outcomes.outcome(connection, kept) is None
        outcome = review_outcomes.outcome(connection, changed)
    assert outcome is not None
    assert outcome.corrected_output == "better"


def test_doubts_of_tenants_that_do_not_pay_are_seen_by_the_sample(
    desk: ReviewDesk, database: Engine
) -> None:
    with transaction(database) as connection:
        add_tenant(connection, "ten_2", pays=REVIEWED)
    passed = desk.answer(tenant_id="ten_2")
    sampled = desk.answer(tenant_id="ten_2", audit_ppm=20_000)
    with snapshot(database) as connection:
        assert review.of_request(connection, passed) is None
        item = review.of_request(connection, sampled)
    assert item is not None
    assert (item.reason, item.inclusion_ppm, item.sampled) == ("audit", 20_000, True)


def test_verdicts_become_labels_and_survive_the_erasure_of_what_was_said(
    desk: ReviewDesk, database: Engine
) -> None:
    text = "One is right. Two is wrong. Three is right."
    units = [
        msgspec.structs.replace(unit(3), byte_start=first, byte_end=last)
        for first, last in [(0, 13), (14, 27), (28, 43)]
    ]
    approved = desk.answer(*units, output=text)
    edited = desk.answer(*units, output=text, reason="audit", audit_ppm=10_000)
    rejected = desk.answer(*units, output=text)
    desk.judge(approved, "key_anna", "approve")
    desk.judge(
        edited, "key_anna", "edit", edited_output=text.replace("Two", "Deux"), note="a name: Ann"
    )
    desk.judge(rejected, "key_anna", "reject")
    with transaction(database) as connection:
        retention.erase(connection, "ten_1", Chosen())
        labels = confidence_labels.c
        rows = connection.execute(
            select(labels.request_id, labels.unit_index, labels.kind, labels.correct).order_by(
                labels.request_id, labels.unit_index
            )
        ).all()
        ppm = {
            row.request_id: row.inclusion_ppm
            for row in connection.execute(select(confidence_labels))
        }
        opinion = review_opinions.of_item(connection, f"rev_{edited}")[0]
    assert (opinion.note, opinion.edited_output) == (None, None)
    assert [tuple(row) for row in rows] == [
        (approved, -1, "request", True),
        *((approved, number, "sentence", True) for number in range(3)),
        (edited, -1, "request", False),
        (edited, 0, "sentence", True),
        (edited, 1, "sentence", False),
        (edited, 2, "sentence", True),
        (rejected, -1, "request", False),
        # Nobody says which was wrong: left out, units would only be known from right answers.
        *((rejected, number, "sentence", False) for number in range(3)),
    ]
    assert ppm == {approved: 1_000_000, edited: 10_000, rejected: 1_000_000}
