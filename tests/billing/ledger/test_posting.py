"""Booking: all of a transaction or none of it, each cause once, and never below zero."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from billing_world import add_tenant, balances, books_balance
from sqlalchemy import Connection, Engine, func, select

from billing.errors import InvalidAmount, Overdraft, TransferConflict, UnknownTenant
from billing.ledger.accounts import Account, AccountKind, Sides, lock
from billing.ledger.balances import Balance, balance
from billing.ledger.credits import grant
from billing.ledger.posting import Transfer, TransferKind, post
from billing.money import NANO, NANO_MAX
from billing.tables import transfers
from metering.database import transaction

CREDIT = Account("ten_1", AccountKind.TENANT_CREDIT, "USD")
PROMO = Account("ten_1", AccountKind.PROMOTIONAL, "USD")
EARNINGS = Account("ten_1", AccountKind.EARNINGS, "USD")
POOL = Account("ten_1", AccountKind.REVIEW_POOL, "USD")


@pytest.fixture
def connection(database: Engine) -> Iterator[Connection]:
    with transaction(database) as opened:
        add_tenant(opened, credit="1")
        add_tenant(opened, "ten_2", credit="0")
    with transaction(database) as opened:
        yield opened
        books_balance(opened)


def move(name: str, debit: Account, credit: Account, amount: int) -> Transfer:
    return Transfer(name, TransferKind.CHARGE, debit, credit, amount, event_time_us=1)


def booked(connection: Connection) -> int:
    return int(connection.scalar(select(func.count()).select_from(transfers)) or 0)


def test_a_transaction_moves_all_its_amounts(connection: Connection) -> None:
    assert post(
        connection,
        "t",
        [move("a", CREDIT, PROMO, 300), move("b", PROMO, EARNINGS, 200), move("c", PROMO, POOL, 1)],
    )
    assert balances(connection) == {
        "tenant_credit": NANO - 300,
        "promotional": 99,
        "earnings": 200,
        "review_pool": 1,
    }


def test_booking_a_cause_again_changes_nothing(connection: Connection) -> None:
    booking = [move("a", CREDIT, PROMO, 300), move("b", PROMO, EARNINGS, 200)]
    assert post(connection, "t", booking)
    before = balances(connection), booked(connection)
    assert not post(connection, "t", booking)
    assert (balances(connection), booked(connection)) == before


@pytest.mark.parametrize(
    ("transaction_id", "booking"),
    [
        ("t", [move("a", CREDIT, PROMO, 301)]),
        ("t", [move("a", CREDIT, EARNINGS, 300)]),
        ("t", [move("a", CREDIT, PROMO, 300), move("new", CREDIT, PROMO, 1)]),
        ("other", [move("a", CREDIT, PROMO, 300)]),
    ],
)
def test_the_same_id_with_another_body_is_a_conflict_and_changes_nothing(
    connection: Connection, transaction_id: str, booking: list[Transfer]
) -> None:
    post(connection, "t", [move("a", CREDIT, PROMO, 300)])
    before = balances(connection), booked(connection)
    with pytest.raises(TransferConflict):
        post(connection, transaction_id, booking)
    assert (balances(connection), booked(connection)) == before


def test_a_guarded_account_is_never_overdrawn_and_nothing_is_changed(
    connection: Connection,
) -> None:
    before = balances(connection), booked(connection)
    with pytest.raises(Overdraft) as refusal:
        post(connection, "t", [move("a", CREDIT, PROMO, 5), move("b", CREDIT, EARNINGS, NANO)])
    assert refusal.value.account_id == CREDIT.id
    assert (refusal.value.needed_nano, refusal.value.available_nano) == (NANO + 5, NANO)
    assert (balances(connection), booked(connection)) == before


def test_what_comes_in_within_a_transaction_may_go_out_again(connection: Connection) -> None:
    assert post(connection, "t", [move("a", PROMO, EARNINGS, 7), move("b", CREDIT, PROMO, 7)])


def test_transfers_of_nothing_are_left_out(connection: Connection) -> None:
    before = booked(connection)
    assert not post(connection, "t", [move("a", CREDIT, PROMO, 0)])
    assert booked(connection) == before


def test_amounts_have_no_sign_and_currencies_never_mix(connection: Connection) -> None:
    euro = Account("ten_1", AccountKind.HOLDS, "EUR")
    for wrong in (move("a", CREDIT, PROMO, -1), move("a", CREDIT, euro, 1)):
        with pytest.raises(ValueError, match="a"):
            post(connection, "t", [wrong])


def test_locking_a_tenants_account_locks_its_credit_first(connection: Connection) -> None:
    assert lock(connection, [EARNINGS]) == {EARNINGS: Sides(0, 0), CREDIT: Sides(0, NANO)}


def test_credit_is_granted_once_per_cause(connection: Connection) -> None:
    assert grant(connection, "ten_2", 500, "invoice-1")
    assert not grant(connection, "ten_2", 500, "invoice-1")
    assert grant(connection, "ten_2", 500, "invoice-2")
    with pytest.raises(TransferConflict):
        grant(connection, "ten_2", 501, "invoice-1")
    assert balance(connection, "ten_2") == Balance(1_000, 0, "USD")
    assert balances(connection, None) == {"cash": -NANO - 1_000}


def test_one_cause_may_name_grants_of_two_tenants(connection: Connection) -> None:
    assert grant(connection, "ten_1", 5, "welcome")
    assert grant(connection, "ten_2", 5, "welcome")


@pytest.mark.parametrize("amount", [0, -1])
def test_a_grant_of_nothing_is_refused(connection: Connection, amount: int) -> None:
    with pytest.raises(InvalidAmount):
        grant(connection, "ten_2", amount, "x")


def test_no_account_takes_more_than_an_int64_holds_and_nothing_is_changed(
    connection: Connection,
) -> None:
    room = NANO_MAX - NANO  # the operator's cash has paid one dollar already
    assert grant(connection, "ten_2", room, "up to the brim")
    before = balances(connection), booked(connection)
    with pytest.raises(InvalidAmount, match="the debits of op:cash:USD would come to 9223372036"):
        grant(connection, "ten_1", 1, "a drop more")
    with pytest.raises(InvalidAmount, match="the credits of ten_1:earnings:USD"):
        post(
            connection, "t", [move("a", EARNINGS, POOL, 1), move("b", POOL, EARNINGS, NANO_MAX + 1)]
        )
    assert (balances(connection), booked(connection)) == before
    assert balance(connection, "ten_2") == Balance(room, 0, "USD")
    assert not grant(connection, "ten_2", room, "up to the brim")


def test_nobody_has_no_balance(connection: Connection) -> None:
    with pytest.raises(UnknownTenant):
        balance(connection, "ten_none")
    with pytest.raises(UnknownTenant):
        grant(connection, "ten_none", 1, "x")
    assert balance(connection, "ten_2") == Balance(0, 0, "USD")
