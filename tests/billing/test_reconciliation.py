"""Reconciliation: clean books are clean, and every way to falsify them is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from billing_cases import energy, nothing_emitted, summary, tariff, unit
from billing_world import (
    FAR_US,
    STARTED_US,
    add_request,
    add_tenant,
    count,
    emit,
    ended,
    mark,
    settlement,
    window,
)
from invoice_world import at
from sqlalchemy import Connection, Engine, delete, select, text, update
from unguarded import unguard

from billing import receipts as signing
from billing import request_evidence, request_triggers, review, triggers, verdict_triggers
from billing.gate import HoldGate
from billing.invoices import closing
from billing.invoices.tables import invoice_lines, invoices
from billing.invoices.triggers import drop as drop_invoice_triggers
from billing.receipt_documents import receipt_document
from billing.reconciliation import Reconciliation, Scope, reconcile
from billing.settlement import Settlement
from billing.tables import accounts, holds, rated_lines, receipts, review_items, transfers
from metering import clock
from metering.database import transaction
from metering.events import EndedBy, RequestStatus
from metering.tables import request_summaries, requests, tenants, usage_events

TERMS = tariff(
    input={"per_million": "0.1"},
    output={"per_million": "0.4", "units": {"fragment": "1.25"}},
    energy={"per_million": {"estimated": "1"}, "cap_joules_per_token": "9"},
    review={"fee": "0.01"},
)


@pytest.fixture
def settler(tmp_path: Path) -> Settlement:
    return settlement(tmp_path)


@pytest.fixture(scope="module")
def days_work(shared_database: Engine, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Every kind of end, reviews in every state, and one request still running."""
    settler, gate = settlement(tmp_path_factory.mktemp("keys")), HoldGate()
    with transaction(shared_database) as opened:
        settler._signer.register(opened)
        add_tenant(opened, "ten_1", opt_in=True, pays=TERMS)
        for number, final in enumerate(
            (
                summary(unit(8), unit(2, "fragment")),
                summary(review_reason="request_confidence"),
                summary(review_reason="audit"),
                summary(review_reason="missing_score", confidence=None),
                summary(energy=energy("unavailable", None)),
                summary(unit(4), status=RequestStatus.CANCELLED, ended_by=EndedBy.TENANT),
                nothing_emitted(status=RequestStatus.REFUSED, ended_by=EndedBy.OPERATOR),
                summary(),
                summary(unit(3_000, "fragment")),
            ),
            start=1,
        ):
            ceiling = 200_000_000 if final.output_tokens == 3_000 else None
            request = add_request(
                opened, f"req_{number}", test_mode=number == 8, max_cost_nano=ceiling
            )
            gate.admit(opened, request, expires_at_us=FAR_US)
            named = msgspec.structs.replace(final, request_id=request.id)
            emit(opened, ended(opened, settler, named))
        for number, verdict in ((2, "reject"), (3, "approve")):
            token = review.claim(opened, f"rev_req_{number}", "key_anna")
            review.resolve(
                opened,
                f"rev_req_{number}",
                "key_anna",
                token,
                verdict=verdict,
                reasons=[] if verdict == "approve" else ["incorrect"],
                signer=settler._signer,
            )
        live = add_request(opened, "req_live")
        gate.admit(opened, live, expires_at_us=FAR_US)
    with transaction(shared_database) as opened:
        # Falsifying the books takes somebody who removes the triggers first.
        for guards in (triggers, request_triggers, verdict_triggers):
            for statement in guards.drop(opened.dialect.name):
                opened.exec_driver_sql(statement)
        unguard(opened, "usage_events", "request_summaries")
    return shared_database


@pytest.fixture
def connection(days_work: Engine) -> Iterator[Connection]:
    """A day's work, to be falsified; nothing of that stays."""
    with transaction(days_work) as opened:
        yield opened
        opened.rollback()


def checks(found: Reconciliation) -> set[str]:
    return {difference.check for difference in found.differences}


def test_honest_books_show_no_difference(connection: Connection) -> None:
    found = reconcile(connection)
    assert found.differences == ()
    assert found.is_clean
    assert found.totals.requests == 10
    assert found.totals.receipts == 9
    assert found.totals.tokens == 10 + 10 + 10 + 10 + 10 + 4 + 10 + 3_000


def test_an_empty_database_is_clean(database: Engine) -> None:
    with transaction(database) as connection:
        assert reconcile(connection).is_clean


def lose_an_event(connection: Connection) -> None:
    connection.execute(delete(usage_events).where(usage_events.c.id == "req_1/block/1"))


def lose_a_terminal_event(connection: Connection) -> None:
    connection.execute(delete(usage_events).where(usage_events.c.id == "req_1/terminal/0"))


def count_more_tokens(connection: Connection) -> None:
    count(connection, "engine-1", blocks=1, tokens=5)


def withhold_tokens(connection: Connection) -> None:
    count(connection, "engine-1", blocks=0, tokens=0, withheld=1)


def meter_more(connection: Connection) -> None:
    window(connection, "engine-1", 5)


def raise_a_line(connection: Connection) -> None:
    connection.execute(
        update(rated_lines)
        .where(rated_lines.c.request_id == "req_1", rated_lines.c.line == 0)
        .values(amount_nano=rated_lines.c.amount_nano + 1)
    )


def raise_a_receipt(connection: Connection) -> None:
    connection.execute(
        update(receipts)
        .where(receipts.c.request_id == "req_1")
        .values(total_nano=receipts.c.total_nano + 1)
    )


def rewrite_a_receipt(connection: Connection) -> None:
    row = connection.execute(select(receipts).where(receipts.c.request_id == "req_1")).one()
    connection.execute(
        update(receipts)
        .where(receipts.c.request_id == "req_1")
        .values(document=row.document.replace('"blocks":5', '"blocks":6'))
    )


def raise_a_transfer(connection: Connection) -> None:
    connection.execute(
        update(transfers)
        .where(transfers.c.id == "req_1/charge")
        .values(amount_nano=transfers.c.amount_nano + 1)
    )


def raise_a_balance(connection: Connection) -> None:
    connection.execute(
        update(accounts)
        .where(accounts.c.id == "ten_1:tenant_credit:USD")
        .values(credits_nano=accounts.c.credits_nano + 1)
    )


def leave_a_hold_open(connection: Connection) -> None:
    connection.execute(
        update(holds)
        .where(holds.c.request_id == "req_1")
        .values(state="pending", resolved_at_us=None)
    )


def lose_a_hold(connection: Connection) -> None:
    connection.execute(delete(holds).where(holds.c.request_id == "req_live"))


def lose_a_receipt(connection: Connection) -> None:
    connection.execute(delete(receipts).where(receipts.c.request_id == "req_1"))


def end_without_settling(connection: Connection) -> None:
    mark(connection, "req_live", RequestStatus.COMPLETED)


def forget_a_refund(connection: Connection) -> None:
    connection.execute(delete(transfers).where(transfers.c.id == "req_2/refund"))


def forget_a_review(connection: Connection) -> None:
    connection.execute(delete(review_items).where(review_items.c.id == "rev_req_4"))


def rewrite_a_verdict(connection: Connection) -> None:
    connection.execute(
        update(review_items).where(review_items.c.id == "rev_req_2").values(verdict="approve")
    )


def change_the_summary(connection: Connection) -> None:
    body = connection.scalar(
        select(request_summaries.c.body).where(request_summaries.c.request_id == "req_1")
    )
    assert body is not None
    changed = body.replace('"tokens":8', '"tokens":7').replace('"tokens":2', '"tokens":3')
    assert changed != body
    connection.execute(
        update(request_summaries)
        .where(request_summaries.c.request_id == "req_1")
        .values(body=changed)
    )


def change_what_is_added_up(connection: Connection) -> None:
    connection.execute(
        update(request_summaries)
        .where(request_summaries.c.request_id == "req_1")
        .values(output_tokens=request_summaries.c.output_tokens + 1)
    )


def give_a_receipt_away(connection: Connection) -> None:
    add_tenant(connection, "ten_2", pays=TERMS)
    connection.execute(
        update(receipts).where(receipts.c.request_id == "req_1").values(tenant_id="ten_2")
    )


def change_the_end(connection: Connection) -> None:
    connection.execute(
        update(requests).where(requests.c.id == "req_1").values(finish_reason="length")
    )


def change_the_tariff(connection: Connection) -> None:
    connection.execute(
        text("UPDATE tariff_versions SET document = replace(document, '0.4', '0.5')")
    )


def lose_a_key(connection: Connection) -> None:
    connection.execute(text("DELETE FROM signing_keys"))


def change_the_pinned_version(connection: Connection) -> None:
    connection.execute(
        update(requests).where(requests.c.id == "req_1").values(tariff_version_id="test@7")
    )


@pytest.mark.parametrize(
    ("falsify", "named"),
    [
        (
            lose_an_event,
            {
                "block events are without gaps",
                "summary output tokens = events",
                "event tokens = engine tokens less withheld",
            },
        ),
        (lose_a_terminal_event, {"a final request has one terminal event"}),
        (count_more_tokens, {"event tokens = engine tokens less withheld"}),
        (withhold_tokens, {"event tokens = engine tokens less withheld"}),
        (meter_more, {"energy events = meter's share of requests"}),
        (raise_a_line, {"rated lines = summary under its tariff", "receipt total = rated lines"}),
        (raise_a_receipt, {"receipt total = rated lines"}),
        (rewrite_a_receipt, {"receipt verifies"}),
        (
            raise_a_transfer,
            {
                "tenant's payments = receipt total",
                "account debits = transfers",
                "account credits = transfers",
            },
        ),
        (raise_a_balance, {"account credits = transfers"}),
        (
            leave_a_hold_open,
            {"a final request's hold is resolved", "held credit = pending holds"},
        ),
        (lose_a_hold, {"a live request has a hold", "held transfers = hold"}),
        (lose_a_receipt, {"a final request has a receipt"}),
        (end_without_settling, {"a final request has a summary"}),
        (forget_a_refund, {"refund transfers = adjustments"}),
        (
            forget_a_review,
            {"review pool = open review's fee", "review pool = fees of open reviews"},
        ),
        (
            rewrite_a_verdict,
            {"review's verdict = deciding opinion", "signed outcome = review"},
        ),
        (change_the_summary, {"rated lines = summary under its tariff"}),
        (change_what_is_added_up, {"summary's columns = summary"}),
        (give_a_receipt_away, {"receipt's tenant = request"}),
        (change_the_end, {"summary finish reason = request"}),
        (change_the_tariff, {"rated lines = summary under its tariff"}),
        (change_the_pinned_version, {"summary tariff = request"}),
        (lose_a_key, {"receipt verifies", "adjustment verifies"}),
    ],
)
def test_what_was_falsified_is_named(
    connection: Connection, falsify: Callable[[Connection], None], named: set[str]
) -> None:
    if falsify is lose_a_receipt:
        connection.execute(text("DELETE FROM adjustments"))
    falsify(connection)
    found = reconcile(connection)
    assert not found.is_clean
    assert named <= checks(found)


def test_a_difference_says_where_and_both_figures(connection: Connection) -> None:
    count_more_tokens(connection)
    (difference,) = reconcile(connection).differences
    assert difference.subject == "all"
    assert int(difference.expected) == int(difference.actual) + 5


def test_many_requests_are_read_page_by_page(
    database: Engine, settler: Settlement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_evidence, "PAGE", 3)
    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection, pays=TERMS)
        for number in range(8):
            request = add_request(connection, f"req_{number}")
            HoldGate().admit(connection, request, expires_at_us=FAR_US)
            final = summary(request_id=request.id, ended_at_us=STARTED_US + number)
            emit(connection, ended(connection, settler, final))
        found = reconcile(connection)
    assert found.is_clean
    assert found.totals.requests == 8


MARCH, APRIL = at("2026-03-31 23:30"), at("2026-03-31 22:30")  # in London and in Berlin


def test_each_period_of_each_tenant_is_the_same_in_every_book(
    database: Engine, settler: Settlement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same instants lie in March where clocks are behind, and in April where they are not."""
    monkeypatch.setattr(clock, "now_us", lambda: at("2026-05-10 00:00"))
    with transaction(database) as connection:
        settler._signer.register(connection)
        for tenant_id, zone in (("ten_1", "America/New_York"), ("ten_2", "Europe/Berlin")):
            add_tenant(connection, tenant_id, pays=TERMS)
            connection.execute(
                update(tenants).where(tenants.c.id == tenant_id).values(time_zone=zone)
            )
            for number, when in enumerate((MARCH, APRIL)):
                name = f"req_{tenant_id}_{number}"
                request = add_request(connection, name, tenant_id, started_at_us=when)
                HoldGate().admit(connection, request, expires_at_us=FAR_US)
                final = summary(
                    request_id=request.id,
                    tenant_id=tenant_id,
                    started_at_us=when,
                    ended_at_us=when,
                )
                emit(connection, ended(connection, settler, final))
    list(closing.close(database, "2026-03", "ten_1"))
    list(closing.close(database, "2026-04", "ten_2"))
    with transaction(database) as connection:
        found = reconcile(connection)
        assert found.differences == ()
        march, april = found.periods
        assert (march.tenant_id, march.period) == ("ten_1", "2026-03")
        assert (april.tenant_id, april.period) == ("ten_2", "2026-04")
        for each in (march, april):
            assert (each.requests, each.event_tokens, each.summary_tokens) == (2, 20, 20)
            assert each.is_billed
            assert 0 < each.rated_nano == each.receipts_nano == each.ledger_nano
            assert each.billed_nano == each.rated_nano
        assert reconcile(connection, Scope("ten_2")).periods == (april,)
        assert reconcile(connection, Scope(period="2026-03")).periods == (march,)
        assert reconcile(connection, Scope("ten_2", "2026-03")).periods == ()
    with transaction(database) as connection:
        for statement in drop_invoice_triggers(connection.dialect.name):
            connection.exec_driver_sql(statement)
        connection.execute(
            update(invoice_lines)
            .where(
                invoice_lines.c.invoice_id.in_(
                    select(invoices.c.id).where(invoices.c.tenant_id == "ten_1")
                ),
                invoice_lines.c.line == 0,
            )
            .values(amount_nano=invoice_lines.c.amount_nano + 1)
        )
    with transaction(database) as connection:
        (difference,) = reconcile(connection).differences
    assert (difference.check, difference.subject) == (
        "billed = rated and adjusted",
        "ten_1 2026-03",
    )


def test_what_an_earlier_version_signed_and_summed_up_says_less_and_is_no_difference(
    database: Engine, settler: Settlement, monkeypatch: pytest.MonkeyPatch
) -> None:
    def earlier(*given: Any, **more: Any) -> dict[str, Any]:
        document = receipt_document(*given, **more)
        for part, names in {
            "energy": ("weights", "devices", "update_period_us"),
            "output": ("cached_input_tokens", "forced_tokens"),
            "confidence": ("calibration",),
        }.items():
            for name in names:
                del document[part][name]
        return document

    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection, pays=TERMS)
        HoldGate().admit(connection, add_request(connection, "req_1"), expires_at_us=FAR_US)
        known = summary(request_id="req_1")
        unnamed = msgspec.structs.replace(
            known, energy=msgspec.structs.replace(known.energy, devices=())
        )
        monkeypatch.setattr(signing, "receipt_document", earlier)
        final = ended(connection, settler, unnamed)
        emit(connection, msgspec.structs.replace(final, energy=known.energy))
        assert reconcile(connection).differences == ()
