"""Random faults, crashes and webhooks between us and Stripe: one effect each, and equal books."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from billing_world import add_tenant, balances, books_balance, settlement
from databases import SqliteFiles, fresh, reopened
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invoice_world import Month, at, priced
from sqlalchemy import Connection
from stripe_process import StripeProcess, running

from billing.invoices import closing, credit_notes, issuing, paying
from billing.payments import collection, comparison, outbox, webhooks
from metering.database import snapshot, transaction

HOUR_US = 3600 * 10**6
# How the invoice comes to its end: what is left of it is paid at Stripe, by transfer, or by nobody.
ENDINGS = ["paid", "transferred", "given up"]
FAULTS = ["", "", "429", "500", "500 after", "drop", "drop after"]


@pytest.fixture(scope="module")
def stripe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StripeProcess]:
    with running(tmp_path_factory.mktemp("stripe")) as process:
        yield process


class Crash(BaseException):
    """The process dies."""


class Crashing:
    """A provider after some of whose answers the process dies before it has read them."""

    def __init__(self, real: Any, crashes: list[bool]) -> None:
        self._real = real
        self._crashes = crashes

    def do(self, *args: Any) -> Any:
        answer = self._real.do(*args)
        if self._crashes and self._crashes.pop():
            raise Crash
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_whatever_breaks_between_us_and_stripe_each_thing_happens_once(
    sqlite_files: SqliteFiles, tmp_path: Path, stripe: StripeProcess
) -> None:
    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.sampled_from(FAULTS), max_size=12),
        st.lists(st.sampled_from([False, False, True]), max_size=8),
        st.lists(st.sampled_from([1, 5, 30]), min_size=1, max_size=4),
        st.randoms(use_true_random=False),
        st.sampled_from(ENDINGS),
    )
    def holds(
        faults: list[str], crashes: list[bool], hours: list[int], chance: Any, ending: str
    ) -> None:
        with pytest.MonkeyPatch.context() as patch, fresh(sqlite_files) as url:
            run(
                url,
                tmp_path,
                patch,
                stripe,
                faults=faults,
                crashes=crashes,
                hours=hours,
                chance=chance,
                ending=ending,
            )

    holds()


def run(
    url: str,
    folder: Path,
    patch: pytest.MonkeyPatch,
    stripe: StripeProcess,
    *,
    faults: list[str],
    crashes: list[bool],
    hours: list[int],
    chance: Any,
    ending: str,
) -> None:
    database = reopened(url)
    month = Month(database, settlement(folder), patch)
    stripe.act("reset")
    provider = Crashing(stripe.provider, crashes)
    with transaction(database) as connection:
        month.settlement._signer.register(connection)
        add_tenant(connection, credit="1000", pays=priced())
        collection.enrol(connection, "ten_1", "pay@acme.example", "USD")
    when = at("2026-11-10 12:00")
    month.on_account(
        "req_1", "ten_1", month.serve("req_1", ended_us=when, tokens=999_995), at_us=when
    )
    month.now_us = at("2026-12-04 00:00")
    stripe.act("clock", at_s=month.now_us / 10**6)

    def queue(connection: Connection, invoice_id: str) -> None:
        collection.collect(connection, invoice_id)

    (closed,) = closing.close(database, "2026-11", witness=queue)
    stripe.act("faults", faults=faults)
    push_all(month, stripe, provider, hours)
    assert stripe.counts() == {"customer": 1, "invoice": 1, "invoiceitem": 1}
    assert stripe.one("invoice")["amount_due"] == month.invoice(closed.invoice_id).row.due_minor

    if ending == "paid":
        stripe.act("pay", invoice=stripe.one("invoice")["id"])
    else:  # a part is credited, and the same faults once more
        end_here(month, str(closed.invoice_id), ending)
        stripe.act("faults", faults=faults[::-1])
        push_all(month, stripe, provider, hours)
        assert stripe.counts()["credit_note"] == 1
        assert stripe.counts().get("invoice_payment", 0) == (ending == "transferred")
    stripe.act("clock", at_s=time.time())
    events = stripe.events() * 2
    chance.shuffle(events)
    for event in events:
        webhooks.receive(database, stripe.provider, *event)
    assert comparison.compare(database, stripe.provider).differences == []
    month.check()
    with snapshot(database) as connection:
        books_balance(connection)
        assert "receivable" not in balances(connection)
        assert ("write_off" in balances(connection)) is (ending == "given up")
        clearing = balances(connection, None).get("payment_clearing", 0)
    theirs = stripe.one("invoice")
    assert -clearing == (theirs["amount_paid"] * 10**7 if ending == "paid" else 0)
    state = "uncollectible" if ending == "given up" else "paid"
    assert (month.invoice(closed.invoice_id).row.state, theirs["status"]) == (state, state)
    database.dispose()


def push_all(month: Month, stripe: StripeProcess, provider: Crashing, hours: list[int]) -> None:
    """Push until nothing waits, through crashes, the hours going by."""
    for step in itertools.count():
        assert step < 200
        try:
            outbox.push(month.database, provider)  # type: ignore[arg-type]
        except Crash:
            continue
        with snapshot(month.database) as connection:
            if not outbox.open_rows(connection):
                return
        wait = hours[step % len(hours)]
        month.now_us += wait * HOUR_US
        stripe.act("clock", advance_s=wait * 3600)


def end_here(month: Month, invoice_id: str, ending: str) -> None:
    with transaction(month.database) as connection:
        credit_notes.credit(connection, invoice_id, 30, reason="ours", reference="r")
        collection.tell(connection, invoice_id)
        if ending == "transferred":
            left = issuing.remaining(connection, issuing.locked(connection, invoice_id))
            paying.pay(connection, invoice_id, left, method=paying.MANUAL, cause_id="wire")
        else:
            issuing.give_up(connection, invoice_id)
        collection.tell(connection, invoice_id)
