"""What pages and API read: every figure adds up to the books."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from billing_cases import STARTED_US, energy, summary, tariff
from billing_world import FAR_US, add_request, add_tenant, balances, ended, settlement
from outside_reports import report
from sqlalchemy import Connection, Engine

from billing import outside, queries, review, review_queries
from billing.gate import HoldGate
from billing.ledger.balances import balance
from billing.settlement import Settlement
from metering import clock
from metering.database import transaction

TERMS = tariff(input={"per_million": "0.1"}, output={"per_million": "0.4"}, review={"fee": "0.01"})
FEE = 10_000_000
ALWAYS = (0, FAR_US)
BERLIN = ZoneInfo("Europe/Berlin")


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp()) * 10**6


class World:
    """One connection, a clock that the test moves, and requests ended at chosen times."""

    def __init__(self, connection: Connection, settler: Settlement) -> None:
        self.connection = connection
        self.settler = settler
        self.now_us = us("2026-03-28T12:00:00+00:00")
        self.count = 0

    def request(self, at: str, tenant: str = "ten_1", **fields: object) -> str:
        """A request of 20 tokens in and 10 out that ended at this time."""
        self.count += 1
        self.now_us = us(at)
        request = add_request(self.connection, f"req_{self.count}", tenant)
        HoldGate().admit(self.connection, request, expires_at_us=FAR_US)
        final = summary(request_id=request.id, ended_at_us=self.now_us, **fields)
        ended(self.connection, self.settler, final)
        return request.id

    def reject(self, request_id: str) -> None:
        item_id = f"rev_{request_id}"
        token = review.claim(self.connection, item_id, "key_anna")
        review.resolve(
            self.connection,
            item_id,
            "key_anna",
            token,
            verdict="reject",
            reasons=["incorrect"],
            signer=self.settler._signer,
        )


@pytest.fixture
def world(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        made = World(connection, settler)
        monkeypatch.setattr(clock, "now_us", lambda: made.now_us)
        settler._signer.register(connection)
        add_tenant(connection, "ten_1", opt_in=True, pays=TERMS)
        add_tenant(connection, "ten_2", pays=TERMS)
        yield made


def test_charges_add_up_by_day_and_component(world: World) -> None:
    world.request("2026-03-28T09:00:00+00:00")
    world.request("2026-03-28T21:00:00+00:00")
    world.request("2026-03-29T09:00:00+00:00", review_reason="request_confidence")
    world.request("2026-03-29T09:00:00+00:00", "ten_2")
    days = [
        (charge.day, charge.component, charge.amount_nano)
        for charge in queries.charges(world.connection, "ten_1", *ALWAYS)
    ]
    assert days == [
        (date(2026, 3, 28), "input", 4_000),
        (date(2026, 3, 28), "output", 8_000),
        (date(2026, 3, 29), "input", 2_000),
        (date(2026, 3, 29), "output", 4_000),
        (date(2026, 3, 29), "review", FEE),
    ]


def test_days_are_the_readers_days_also_when_the_clocks_change(world: World) -> None:
    # In Berlin 2026-03-29 has 23 hours: it begins at 23:00 and ends at 22:00 UTC.
    for at in (
        "2026-03-28T22:59:59+00:00",
        "2026-03-28T23:00:00+00:00",
        "2026-03-29T21:59:59+00:00",
        "2026-03-29T22:00:00+00:00",
    ):
        world.request(at)
    by_day = {
        charge.day.day: charge.amount_nano
        for charge in queries.charges(world.connection, "ten_1", *ALWAYS, zone=BERLIN)
        if charge.component == "input"
    }
    assert by_day == {28: 2_000, 29: 4_000, 30: 2_000}
    utc = queries.charges(world.connection, "ten_1", *ALWAYS, zone=UTC)
    assert {charge.day.day for charge in utc} == {28, 29}


def test_a_range_is_half_open(world: World) -> None:
    world.request("2026-03-28T09:00:00+00:00")
    at = us("2026-03-28T09:00:00+00:00")
    assert queries.charges(world.connection, "ten_1", at, at + 1)
    assert not queries.charges(world.connection, "ten_1", at - 5, at)


def test_what_was_given_back_counts_when_it_was(world: World) -> None:
    request_id = world.request("2026-03-28T09:00:00+00:00", review_reason="request_confidence")
    world.now_us = us("2026-03-28T20:00:00+00:00")
    world.reject(request_id)
    charges = queries.charges(world.connection, "ten_1", *ALWAYS)
    assert [charge.amount_nano for charge in charges if charge.component == "adjustment"] == [
        -4_000
    ]
    spent = sum(charge.amount_nano for charge in charges)
    assert spent == 10**9 - balance(world.connection, "ten_1").available_nano


def test_receipts_are_listed_newest_first_page_by_page(world: World) -> None:
    for minute in range(5):
        world.request(f"2026-03-28T09:0{minute // 2}:00+00:00")
    world.request("2026-03-28T09:00:00+00:00", "ten_2")

    def page(cursor: tuple[int, str] | None) -> list[queries.ReceiptRow]:
        return queries.receipt_rows(
            world.connection, "ten_1", start_us=0, end_us=FAR_US, limit=2, cursor=cursor
        )

    rows = page(None)
    while more := page((rows[-1].ended_at_us, rows[-1].request_id)):
        rows += more
    assert [row.request_id for row in rows] == ["req_5", "req_4", "req_3", "req_2", "req_1"]


def test_a_receipt_row_says_what_its_request_came_to(world: World) -> None:
    request_id = world.request(
        "2026-03-28T09:00:00+00:00",
        energy=energy("estimated", 12_345_678),
        review_reason="request_confidence",
    )
    world.reject(request_id)
    (row,) = queries.receipt_rows(world.connection, "ten_1", start_us=0, end_us=FAR_US, limit=9)
    assert (row.complete_units, row.fragment_units, row.output_tokens) == (1, 0, 10)
    assert (row.tier, row.geo_mean, row.energy_class) == ("standard", "0.9600", "estimated")
    assert row.shown_uj == 12_300_000
    assert (row.total_nano, row.adjusted_nano) == (6_000 + FEE, -4_000)


def test_joules_nobody_measured_are_null(world: World) -> None:
    world.request("2026-03-28T09:00:00+00:00", energy=energy("unavailable", None))
    (row,) = queries.receipt_rows(world.connection, "ten_1", start_us=0, end_us=FAR_US, limit=9)
    assert row.shown_uj is None


def test_a_statement_adds_up_to_the_available_credit(world: World) -> None:
    request_id = world.request("2026-03-28T09:00:00+00:00", review_reason="request_confidence")
    world.reject(request_id)
    entries = queries.statement(world.connection, "ten_1", 100)
    assert [entry.kind for entry in entries] == ["refund", "release", "hold", "grant"]
    available = balance(world.connection, "ten_1").available_nano
    assert sum(entry.amount_nano for entry in entries) == available
    first = queries.statement(world.connection, "ten_1", 3)
    rest = queries.statement(world.connection, "ten_1", 3, first[-1].seq)
    assert first + rest == entries


def test_a_reviews_money_is_followed_from_the_hold_to_the_reviewer(world: World) -> None:
    request_id = world.request("2026-03-28T09:00:00+00:00", review_reason="request_confidence")
    world.reject(request_id)
    assert [
        (move.from_kind, move.to_kind, move.amount_nano)
        for move in review_queries.movements(world.connection, request_id)
    ] == [
        ("holds", "review_pool", FEE),
        ("review_pool", "reviewer_payable", FEE),
        ("earnings", "tenant_credit", 4_000),
    ]


def test_the_backlog_is_counted_and_aged(world: World) -> None:
    assert review_queries.backlog(world.connection, 0) == review_queries.Backlog(0, 0, None)
    assert review_queries.funds(world.connection) == []
    first = world.request("2026-03-28T09:00:00+00:00", review_reason="audit")
    world.request("2026-03-28T09:10:00+00:00", review_reason="request_confidence")
    review.claim(world.connection, f"rev_{first}", "key_anna")
    backlog = review_queries.backlog(world.connection, us("2026-03-28T09:30:00+00:00"))
    assert backlog == review_queries.Backlog(queued=1, claimed=1, oldest_us=30 * 60 * 10**6)
    assert backlog.depth == 2
    assert review_queries.funds(world.connection) == [review_queries.ReviewFunds("USD", 2 * FEE, 0)]
    world.reject(first)
    assert review_queries.funds(world.connection) == [review_queries.ReviewFunds("USD", FEE, FEE)]


def test_holds_are_open_until_their_request_has_ended(world: World) -> None:
    world.request("2026-03-28T09:00:00+00:00", review_reason="audit")
    assert queries.holds_open(world.connection) == 0
    HoldGate().admit(
        world.connection, add_request(world.connection, "req_live"), expires_at_us=FAR_US
    )
    assert queries.holds_open(world.connection) == 1


def test_the_books_sum_to_zero(world: World) -> None:
    world.reject(world.request("2026-03-28T09:00:00+00:00", review_reason="audit"))
    totals = queries.books(world.connection)
    assert sum(total.balance_nano for total in totals) == 0
    assert {total.kind for total in totals} >= {"cash", "tenant_credit", "earnings"}
    assert balances(world.connection, None)["cash"] == -2 * 10**9


def test_a_running_request_has_no_lines(world: World) -> None:
    add_request(world.connection, "req_live")
    assert queries.lines(world.connection, "req_live") == []


def test_what_is_typical_comes_from_the_tenants_own_requests(world: World) -> None:
    world.request("2026-03-28T09:00:00+00:00", unattached_tokens=0)
    assert queries.typical(world.connection, "ten_1").joules_per_token is None
    world.request("2026-03-28T09:00:00+00:00", energy=energy("estimated", 60_000_000))
    world.request("2026-03-28T09:00:00+00:00", "ten_2", energy=energy("estimated", 90_000_000))
    assert queries.typical(world.connection, "ten_1").joules_per_token == 2
    assert queries.typical(world.connection).joules_per_token == pytest.approx(2.5)


def test_what_another_engine_reports_makes_no_request_of_ours_dearer(
    database: Engine, tmp_path: Path
) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection, credit="1")
        for number in range(3):
            request = add_request(connection, f"req_{number}")
            HoldGate().admit(connection, request, expires_at_us=FAR_US)
            final = summary(request_id=request.id, energy=energy("estimated", 30_000_000))
            ended(connection, settler, final)
        own = queries.typical(connection, "ten_1"), queries.typical(connection)
    for number in range(8):
        report(database, number, STARTED_US + 10**7, energy_joules="600")
    assert outside.settle_waiting(database, settler)
    with transaction(database) as connection:
        found = queries.typical(connection, "ten_1"), queries.typical(connection)
    assert found == own
    assert (own[0].energy_class, own[0].joules_per_token) == ("estimated", 1)
