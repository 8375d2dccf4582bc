"""Grants and postpaid terms: what pays for a request, and where what is left goes back to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
from billing_cases import STARTED_US
from billing_sweeps import expire_grants
from billing_world import (
    FAR_US,
    add_request,
    add_tenant,
    balances,
)
from credit_cases import paid_by, square
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import IntegrityError

from billing import refunds, review_caps, review_fees
from billing.credit_tables import notices
from billing.errors import (
    InsufficientCredit,
    InvalidAmount,
    InvalidGrant,
    NothingToReverse,
    TransferConflict,
)
from billing.gate import HoldGate
from billing.ledger import alerts, credits, grants, holds, terms
from billing.ledger import balances as tenant_balances
from billing.reconciliation import reconcile
from billing.review_items import ReviewItem
from metering.database import snapshot, transaction

DAY_US = 86_400 * 10**6


def place(connection: Connection, request_id: str, amount_nano: int) -> None:
    add_request(connection, request_id)
    holds.place(
        connection,
        request_id=request_id,
        tenant_id="ten_1",
        currency="USD",
        amount_nano=amount_nano,
        ceiling_nano=None,
        expires_at_us=FAR_US,
    )


def charge(
    connection: Connection, request_id: str, nano: int, *, fee_nano: int = 0
) -> holds.Settled:
    return holds.settle(
        connection, request_id, charge_nano=nano, fee_nano=fee_nano, event_time_us=STARTED_US
    )


def left(connection: Connection) -> dict[str, int]:
    return {
        grant.id.rpartition("/")[2]: grant.remaining_nano
        for grant in grants.listing(connection, "ten_1")
    }


def test_grants_are_spent_by_priority_then_expiry_then_plain_credit_last(
    database: Engine, at: dict[str, int]
) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="0.0000001")  # 100 nano, plain
        for name, options in {
            "never": {"priority": 100},
            "late": {"expires_at_us": STARTED_US + 9 * DAY_US},
            "soon": {"expires_at_us": STARTED_US + DAY_US, "promotional": True},
            "head": {"priority": 1},
            "last": {"priority": 500},
        }.items():
            assert grants.issue(connection, "ten_1", 10, name, **options)
        place(connection, "req_1", 10 + 10 + 10 + 10 + 100 + 5)
        assert paid_by(connection, "req_1") == [
            ("head", 10),
            ("soon", 10),
            ("late", 10),
            ("never", 10),
            ("credit", 100),
            ("last", 5),
        ]
        charge(connection, "req_1", 25)
        assert [part for part in paid_by(connection, "req_1") if part[1]] == [
            ("head", 10),
            ("soon", 10),
            ("late", 5),
        ]
        assert left(connection) == {"head": 0, "soon": 0, "late": 5, "never": 10, "last": 10}
        square(connection)
        assert reconcile_kinds(connection) == set()


def reconcile_kinds(connection: Connection) -> set[str]:
    ours = {"fundings = what the tenant's means gave", "held transfers = hold"}
    return {found.check for found in reconcile(connection).differences} & ours


def test_a_grant_counts_once_whatever_is_retried(database: Engine, at: dict[str, int]) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        add_tenant(connection, "ten_2", credit="0")
        assert grants.issue(connection, "ten_1", 7, "once", expires_at_us=FAR_US)
        assert not grants.issue(connection, "ten_1", 7, "once", expires_at_us=FAR_US)
        with pytest.raises(TransferConflict):
            grants.issue(connection, "ten_1", 8, "once")
        with pytest.raises(TransferConflict):
            grants.issue(connection, "ten_1", 7, "once", promotional=True)
        for terms in ({"expires_at_us": None}, {"expires_at_us": FAR_US, "priority": 1}):
            with pytest.raises(TransferConflict):
                grants.issue(connection, "ten_1", 7, "once", **terms)
        credits.grant(connection, "ten_2", 7, "plain")
        with pytest.raises(TransferConflict):
            grants.issue(connection, "ten_2", 7, "plain")
        with pytest.raises(InvalidGrant):
            grants.issue(connection, "ten_1", 7, "past", expires_at_us=at["us"])
        assert left(connection) == {"once": 7}


def test_a_grant_repeated_after_its_expiry_is_still_the_same_grant(
    database: Engine, at: dict[str, int]
) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        term = {"expires_at_us": at["us"] + DAY_US}
        assert grants.issue(connection, "ten_1", 7, "once", **term)
        at["us"] += 2 * DAY_US
        assert not grants.issue(connection, "ten_1", 7, "once", **term)
        for nano, terms in ((8, term), (7, {"expires_at_us": term["expires_at_us"] - 1})):
            with pytest.raises(TransferConflict):
                grants.issue(connection, "ten_1", nano, "once", **terms)
        with pytest.raises(InvalidGrant):
            grants.issue(connection, "ten_1", 7, "twice", **term)


def test_credit_granted_for_later_pays_nothing_before(database: Engine, at: dict[str, int]) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        grants.issue(connection, "ten_1", 50, "next", effective_from_us=STARTED_US + DAY_US)
        assert tenant_balances.balance(connection, "ten_1").available_nano == 0
        with pytest.raises(InsufficientCredit):
            place(connection, "req_1", 1)
    at["us"] += DAY_US
    with transaction(database) as connection:
        place(connection, "req_2", 50)
        square(connection)


def test_what_expires_is_breakage_if_it_was_paid_and_nothing_if_it_was_given(
    database: Engine, at: dict[str, int]
) -> None:
    ends = STARTED_US + DAY_US
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        grants.issue(connection, "ten_1", 30, "paid", expires_at_us=ends)
        grants.issue(connection, "ten_1", 30, "given", expires_at_us=ends, promotional=True)
        place(connection, "req_1", 40)
    at["us"] = ends
    with transaction(database) as connection:
        # Not even an unswept grant pays once its time is over; the boundary is exclusive.
        assert tenant_balances.balance(connection, "ten_1").available_nano == 0
        assert expire_grants(connection, ends) == 1
        assert expire_grants(connection, ends) == 0
        charge(connection, "req_1", 35)  # what was held in time still pays
        # The rest of the hold returned to the grant it was taken from, and the sweep takes it.
        assert sum(left(connection).values()) == 5
        assert expire_grants(connection, ends) == 1
        square(connection)
        told = connection.scalar(
            select(notices.c.type).where(notices.c.type == "grant.expired").limit(1)
        )
        assert told == "grant.expired"
    with snapshot(database) as connection:
        kinds = balances(connection)
        broken = balances(connection, None).get("breakage", 0)
        assert kinds.get("promotional", 0) == kinds.get("tenant_credit", 0) == 0
        assert broken + kinds["earnings"] == 30


@pytest.mark.parametrize("swept_before", [True, False])
def test_what_was_held_over_its_expiry_is_gone_when_it_is_released(
    database: Engine, at: dict[str, int], swept_before: bool
) -> None:
    ends = STARTED_US + DAY_US
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        grants.issue(connection, "ten_1", 30, "paid", expires_at_us=ends)
        place(connection, "req_1", 20)
    at["us"] = ends
    with transaction(database) as connection:
        if swept_before:
            assert expire_grants(connection, ends) == 1
        holds.void(connection, "req_1")
        assert tenant_balances.balance(connection, "ten_1").available_nano == 0
        assert expire_grants(connection, ends) == 1
        assert left(connection) == {"paid": 0}
        square(connection)
    with snapshot(database) as connection:
        assert balances(connection).get("tenant_credit", 0) == 0
        assert balances(connection, None)["breakage"] == 30


def refund(connection: Connection, nano: int) -> None:
    refunds.refund(
        connection, "req_1", tenant_id="ten_1", currency="USD", amount_nano=nano, cause="back"
    )


def lapse(connection: Connection, nano: int) -> None:
    item = ReviewItem(
        **dict.fromkeys((field.name for field in fields(ReviewItem)), None)
        | {
            "request_id": "req_1",
            "tenant_id": "ten_1",
            "currency": "USD",
            "fee_nano": nano,
            "paid_by": "tenant",
        }
    )
    assert review_fees.give_back(connection, item) == nano


@pytest.mark.parametrize("promotional", [False, True])
@pytest.mark.parametrize("give_back", [refund, lapse])
def test_what_was_charged_in_time_comes_back_to_whoever_paid_for_it_after_its_grant_expired(
    database: Engine,
    at: dict[str, int],
    give_back: Callable[[Connection, int], None],
    promotional: bool,
) -> None:
    """Paid credit as plain credit; what was given comes back to its grant, and goes with it."""
    ends = STARTED_US + DAY_US
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        grants.issue(connection, "ten_1", 30, "lot", promotional=promotional, expires_at_us=ends)
        place(connection, "req_1", 30)
        charge(connection, "req_1", 25, fee_nano=5)
    at["us"] = ends
    with transaction(database) as connection:
        give_back(connection, 5)
        kept = 0 if promotional else 5
        assert tenant_balances.balance(connection, "ten_1").available_nano == kept
        assert left(connection) == {"lot": 5 - kept}
        square(connection)
        assert expire_grants(connection, ends) == (1 if promotional else 0)
        assert tenant_balances.balance(connection, "ten_1").available_nano == kept
        assert left(connection) == {"lot": 0}
        square(connection)
    with snapshot(database) as connection:
        assert balances(connection, None).get("breakage", 0) == 0


def test_spending_what_was_given_earns_nothing(database: Engine, at: dict[str, int]) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        grants.issue(connection, "ten_1", 30, "welcome", promotional=True)
        place(connection, "req_1", 30)
        charge(connection, "req_1", 30)
        assert balances(connection) == {}
        square(connection)


def test_a_mistaken_grant_is_reversed_as_far_as_it_is_left(
    database: Engine, at: dict[str, int]
) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        grants.issue(connection, "ten_1", 30, "mistake")
        place(connection, "req_1", 10)
        grants.reverse(connection, "ten_1", "mistake")
        assert left(connection) == {"mistake": 0}
        with pytest.raises(NothingToReverse):
            grants.reverse(connection, "ten_1", "mistake")
        charge(connection, "req_1", 4)
        grants.reverse(connection, "ten_1", "mistake")  # what the hold gave back
        assert balances(connection) == {"earnings": 4}
        square(connection)


@pytest.mark.parametrize("field", ["receivable_limit_nano", "alert_below_nano"])
def test_terms_that_nothing_could_come_to_are_refused(database: Engine, field: str) -> None:
    with transaction(database) as connection:
        add_tenant(connection)
        with pytest.raises(InvalidAmount, match="below zero"):
            terms.change(connection, "ten_1", **{field: -1})
        with pytest.raises(InvalidAmount, match="below zero"):
            review_caps.limit(connection, "ten_1", -1)


def test_a_postpaid_tenant_owes_up_to_its_limit_and_no_further(
    database: Engine, at: dict[str, int]
) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="0.00000001")  # 10 nano
        terms.change(connection, "ten_1", receivable_limit_nano=100)
        place(connection, "req_1", 60)
        with pytest.raises(InsufficientCredit):
            place(connection, "req_2", 51)
        assert paid_by(connection, "req_1") == [("credit", 10), ("receivable", 50)]
        charge(connection, "req_1", 30)
        now = tenant_balances.balance(connection, "ten_1")
        assert (now.available_nano, now.receivable_nano, now.held_nano) == (80, 20, 0)
        # A limit below what is owed stops new holds; it makes nothing negative.
        terms.change(connection, "ten_1", receivable_limit_nano=5)
        assert tenant_balances.balance(connection, "ten_1").available_nano == 0
        square(connection)


def test_a_low_balance_is_told_once_until_it_has_risen(
    database: Engine, at: dict[str, int]
) -> None:
    def told(connection: Connection) -> int:
        rows = connection.execute(select(notices.c.id).where(notices.c.type == "balance.low"))
        return len(rows.all())

    with transaction(database) as connection:
        add_tenant(connection, credit="0.0001")
        terms.change(connection, "ten_1", alert_below_nano=95_000)
    gate = HoldGate(lookahead_tokens=10)
    with transaction(database) as connection:
        request = add_request(connection, "req_1")
        gate.admit(connection, request, expires_at_us=FAR_US)
        alerts.balance(connection, "ten_1")
        assert told(connection) == 0  # held is not spent
        charge(connection, "req_1", 6_000)
        alerts.balance(connection, "ten_1")
        alerts.balance(connection, "ten_1")
        assert told(connection) == 1
        grants.issue(connection, "ten_1", 50_000, "top-up")
        at["us"] += 1
        grants.reverse(connection, "ten_1", "top-up")
        assert told(connection) == 2


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE grants SET amount_nano = amount_nano + 1",
        "UPDATE grants SET remaining_nano = -1",
        "UPDATE grants SET remaining_nano = amount_nano + 1",
        "DELETE FROM grants",
        "UPDATE accounts SET credits_nano = credits_nano - 1 WHERE credits_nano > 0",
        "DELETE FROM accounts",
        "UPDATE fundings SET amount_nano = -1",
    ],
)
def test_the_database_itself_refuses_to_bend_a_grant(database: Engine, statement: str) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        grants.issue(connection, "ten_1", 30, "real")
        place(connection, "req_1", 10)
    with pytest.raises(IntegrityError), transaction(database) as connection:
        connection.execute(text(statement))
