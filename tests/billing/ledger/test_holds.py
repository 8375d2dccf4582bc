"""Holds: reserved, raised, and resolved exactly once, with every nano accounted for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from billing_sweeps import expire_holds
from billing_world import (
    FAR_US,
    add_request,
    add_tenant,
    balances,
    books_balance,
    hold_state,
    mark,
    moved,
)
from sqlalchemy import Connection, Engine

from billing.errors import HoldConflict, InsufficientCredit
from billing.ledger import holds
from billing.ledger.holds import Hold, HoldState, Settled
from billing.money import NANO
from metering.database import transaction
from metering.events import RequestStatus


@pytest.fixture
def connection(database: Engine) -> Iterator[Connection]:
    with transaction(database) as opened:
        add_tenant(opened, credit="1")
        for number in range(1, 4):
            add_request(opened, f"req_{number}")
    with transaction(database) as opened:
        yield opened
        books_balance(opened)


def place(
    connection: Connection,
    amount: int,
    request_id: str = "req_1",
    ceiling: int | None = None,
    expires: int = FAR_US,
) -> Hold:
    return holds.place(
        connection,
        request_id=request_id,
        tenant_id="ten_1",
        currency="USD",
        amount_nano=amount,
        ceiling_nano=ceiling,
        expires_at_us=expires,
    )


def settle(connection: Connection, charge: int, fee: int = 0, request_id: str = "req_1") -> Settled:
    return holds.settle(
        connection, request_id, charge_nano=charge, fee_nano=fee, event_time_us=1_000
    )


def test_a_hold_moves_credit_out_of_reach(connection: Connection) -> None:
    place(connection, 400)
    assert balances(connection) == {"tenant_credit": NANO - 400, "holds": 400}


def test_placing_again_changes_nothing_and_another_body_is_a_conflict(
    connection: Connection,
) -> None:
    first = place(connection, 400, ceiling=900)
    assert place(connection, 400, ceiling=900) == first
    holds.extend(connection, "req_1", 500)
    assert place(connection, 400, ceiling=900).amount_nano == 500
    for amount, ceiling in ((401, 900), (500, 900), (400, None)):
        with pytest.raises(HoldConflict):
            place(connection, amount, ceiling=ceiling)
    assert balances(connection)["holds"] == 500


def test_a_hold_beyond_the_credit_is_refused_and_changes_nothing(connection: Connection) -> None:
    place(connection, NANO - 5)
    with pytest.raises(InsufficientCredit) as refusal:
        place(connection, 6, "req_2")
    assert (refusal.value.needed_nano, refusal.value.available_nano) == (6, 5)
    assert hold_state(connection, "req_2") is None
    assert balances(connection) == {"tenant_credit": 5, "holds": NANO - 5}
    place(connection, 5, "req_2")


def test_no_credit_at_all_is_zero_credit(connection: Connection) -> None:
    add_tenant(connection, "ten_poor", credit="0")
    add_request(connection, "req_poor", "ten_poor")
    with pytest.raises(InsufficientCredit):
        holds.place(
            connection,
            request_id="req_poor",
            tenant_id="ten_poor",
            currency="USD",
            amount_nano=1,
            ceiling_nano=None,
            expires_at_us=FAR_US,
        )


def test_a_raised_hold_reserves_the_difference_once(connection: Connection) -> None:
    place(connection, 100)
    assert holds.extend(connection, "req_1", 250).amount_nano == 250
    assert holds.extend(connection, "req_1", 250).amount_nano == 250
    assert holds.extend(connection, "req_1", 40).amount_nano == 250
    assert balances(connection)["holds"] == 250


def test_where_credit_affords_only_the_least_the_hold_rises_to_the_least(
    connection: Connection,
) -> None:
    place(connection, NANO - 100)
    hold = holds.extend(connection, "req_1", NANO + 500, at_least_nano=NANO - 20)
    assert hold.amount_nano == NANO - 20
    with pytest.raises(InsufficientCredit):
        holds.extend(connection, "req_1", NANO + 500, at_least_nano=NANO + 1)
    assert balances(connection) == {"tenant_credit": 20, "holds": NANO - 20}


def test_a_hold_never_passes_its_ceiling(connection: Connection) -> None:
    place(connection, 100, ceiling=150)
    with pytest.raises(HoldConflict):
        holds.extend(connection, "req_1", 151)
    assert holds.extend(connection, "req_1", 150).amount_nano == 150


def test_posting_less_than_the_hold_releases_the_rest(connection: Connection) -> None:
    place(connection, 1_000)
    assert settle(connection, 300, fee=50) == Settled(350, 0, True)
    assert hold_state(connection) == "posted"
    assert balances(connection) == {
        "tenant_credit": NANO - 350,
        "earnings": 300,
        "review_pool": 50,
    }


def test_settling_nothing_voids_the_hold(connection: Connection) -> None:
    place(connection, 1_000)
    assert settle(connection, 0) == Settled(0, 0, True)
    assert hold_state(connection) == "voided"
    assert balances(connection) == {"tenant_credit": NANO}


def test_settling_again_changes_nothing_and_other_amounts_are_a_conflict(
    connection: Connection,
) -> None:
    place(connection, 1_000)
    first = settle(connection, 300, fee=50)
    booked = moved(connection, "req_1")
    assert settle(connection, 300, fee=50) == first
    assert moved(connection, "req_1") == booked
    for charge, fee in ((301, 50), (300, 51)):
        with pytest.raises(HoldConflict):
            settle(connection, charge, fee=fee)


def test_a_charge_above_the_hold_takes_more_credit_before_it_is_written_off(
    connection: Connection,
) -> None:
    place(connection, 100)
    assert settle(connection, 250) == Settled(250, 0, True)
    assert balances(connection) == {"tenant_credit": NANO - 250, "earnings": 250}


def test_what_neither_hold_nor_credit_covers_is_written_off_and_never_below_zero(
    connection: Connection,
) -> None:
    place(connection, NANO - 10)
    assert settle(connection, NANO + 90) == Settled(NANO, 90, True)
    assert balances(connection) == {"earnings": NANO + 90, "write_off": -90}


def test_a_tenant_never_pays_more_than_its_ceiling(connection: Connection) -> None:
    place(connection, 100, ceiling=120)
    assert settle(connection, 150) == Settled(120, 30, True)
    assert balances(connection)["tenant_credit"] == NANO - 120


def test_a_fee_is_paid_in_full_before_the_charge_or_not_at_all(connection: Connection) -> None:
    place(connection, 100, "req_1", ceiling=100)
    assert settle(connection, 80, fee=40) == Settled(100, 20, True)
    place(connection, 100, "req_2", ceiling=100)
    assert settle(connection, 80, fee=140, request_id="req_2") == Settled(80, 0, False)
    assert settle(connection, 80, fee=140, request_id="req_2") == Settled(80, 0, False)
    assert balances(connection)["review_pool"] == 40


def test_voiding_releases_everything_once(connection: Connection) -> None:
    place(connection, 400)
    assert holds.void(connection, "req_1").state is HoldState.VOIDED
    assert holds.void(connection, "req_1").state is HoldState.VOIDED
    assert balances(connection) == {"tenant_credit": NANO}
    with pytest.raises(HoldConflict):
        holds.extend(connection, "req_1", 500)


def test_a_posted_hold_is_never_voided(connection: Connection) -> None:
    place(connection, 400)
    settle(connection, 10)
    with pytest.raises(HoldConflict):
        holds.void(connection, "req_1")


def test_a_hold_that_is_not_there_is_an_error(connection: Connection) -> None:
    for act in (
        lambda: holds.extend(connection, "req_3", 1),
        lambda: holds.void(connection, "req_3"),
        lambda: settle(connection, 1, request_id="req_3"),
    ):
        with pytest.raises(HoldConflict):
            act()


def test_only_holds_past_their_expiry_expire(connection: Connection) -> None:
    place(connection, 100, "req_1", expires=1_000)
    place(connection, 100, "req_2", expires=1_001)
    assert expire_holds(connection, 999) == 0
    assert expire_holds(connection, 1_000) == 1
    assert hold_state(connection, "req_1") == "expired"
    assert hold_state(connection, "req_2") == "pending"
    assert expire_holds(connection, 1_000) == 0


def test_a_renewed_hold_outlives_its_first_expiry_and_is_never_shortened(
    connection: Connection,
) -> None:
    place(connection, 100, expires=1_000)
    holds.renew(connection, ["req_1", "req_3"], 5_000)
    holds.renew(connection, ["req_1"], 2_000)
    holds.renew(connection, [], 9_000)
    assert expire_holds(connection, 4_999) == 0
    assert expire_holds(connection, 5_000) == 1
    holds.renew(connection, ["req_1"], 9_000)
    assert hold_state(connection) == "expired"


def test_the_hold_of_a_final_request_is_voided_by_the_sweep(connection: Connection) -> None:
    place(connection, 100)
    mark(connection, "req_1", RequestStatus.FAILED)
    assert expire_holds(connection, 1_000) == 1
    assert hold_state(connection) == "voided"
    assert balances(connection) == {"tenant_credit": NANO}


def test_a_request_whose_hold_expired_still_pays_from_credit(connection: Connection) -> None:
    place(connection, 500, expires=1_000)
    expire_holds(connection, 1_000)
    assert settle(connection, 300, fee=50) == Settled(350, 0, True)
    assert settle(connection, 300, fee=50) == Settled(350, 0, True)
    assert hold_state(connection) == "expired"
    assert balances(connection)["tenant_credit"] == NANO - 350


def test_after_expiry_what_credit_does_not_cover_is_written_off(connection: Connection) -> None:
    place(connection, 500, "req_1", expires=1_000)
    expire_holds(connection, 1_000)
    place(connection, NANO - 100, "req_2")
    assert settle(connection, 300) == Settled(100, 200, True)
    assert balances(connection) == {
        "holds": NANO - 100,
        "earnings": 300,
        "write_off": -200,
    }


def test_an_expired_hold_keeps_its_ceiling(connection: Connection) -> None:
    place(connection, 50, ceiling=80, expires=1_000)
    expire_holds(connection, 1_000)
    assert settle(connection, 100) == Settled(80, 20, True)
