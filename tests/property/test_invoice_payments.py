"""Payments of invoices as a machine: paid, disputed, refunded, won back and spent in any order.

Goal: what invoices say is left to pay is the receivable; nobody is charged twice nor forgiven: what
a tenant has, less what it owes and what was written off of it, is what it paid and was granted less
what it spent and was invoiced. More is asked, or lost, than was not paid only by what was spent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from billing_world import add_tenant, balances, books_balance, settlement
from databases import Databases, PostgresServer, SqliteFiles, reopened
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from invoice_world import Month, at, priced
from sqlalchemy import Connection, func, select

from billing.errors import InvoiceConflict
from billing.invoices import checks, credit_notes, issuing, paying, queries
from billing.invoices.queries import Invoice
from billing.invoices.tables import credit_notes as credit_notes_table
from billing.ledger import credits
from billing.ledger.accounts import Account, AccountKind, lock_tenant
from billing.ledger.posting import Transfer, TransferKind, post
from billing.settlement import Settlement
from billing.tables import transfers
from metering.database import snapshot, transaction

MINOR = 10**7
MONTHS = ("2026-11", "2026-12")
DUE = 119
STRIPE = "stripe"
amounts = st.sampled_from([1, 59, DUE, DUE, DUE + 1, 2 * DUE])
pick = st.integers(0, 7)
sometimes = st.sampled_from([False] * 7 + [True])

Act = Callable[[Connection], object]


class Crash(Exception):
    """The process dies before its commit."""


class Payments(RuleBasedStateMachine):
    """Two invoices of one tenant, and whatever becomes of them."""

    databases: Databases
    settlement: Settlement

    def __init__(self) -> None:
        super().__init__()
        self.url = self.databases.create(tables=True)
        self.database = reopened(self.url)
        self.patch = pytest.MonkeyPatch()
        month = Month(self.database, self.settlement, self.patch)
        with transaction(self.database) as connection:
            self.settlement._signer.register(connection)
            add_tenant(connection, credit="1", pays=priced())
        month.terms("ten_1", name="Acme GmbH", tax_percent=19)
        self.invoices = [str(self.issue(month, label).row.id) for label in MONTHS]
        self.paid = dict.fromkeys(self.invoices, 0)  # what came less what was taken back
        self.payments: list[tuple[str, str, int]] = []
        self.taken: list[tuple[str, str, int]] = []
        self.done: list[Act] = []
        self.granted_nano, self.spent_nano = 10**9, 0
        self.numbers = itertools.count()

    def issue(self, month: Month, label: str) -> Invoice:
        """One over 1.00 and 19 % tax, all of it on account."""
        when = at(f"{label}-10 12:00")
        charged = month.serve(f"req_{label}", ended_us=when, tokens=249_995)
        month.on_account(f"req_{label}", "ten_1", charged, at_us=when)
        month.now_us = when + 30 * 86_400 * 10**6
        return month.issued(label)

    def teardown(self) -> None:
        self.patch.undo()
        self.database.dispose()
        self.databases.drop(self.url)

    def act(self, act: Act, crashes: bool) -> bool:
        """Do it, then once more, which changes nothing; whether it was committed."""
        with suppress(Crash), transaction(self.database) as connection:
            act(connection)
            before = booked(connection)
            act(connection)
            assert booked(connection) == before
            if crashes:
                raise Crash
            self.done.append(act)
        return not crashes

    @rule(which=pick, amount=amounts, manual=st.booleans(), crashes=sometimes)
    def pay(self, which: int, amount: int, manual: bool, crashes: bool) -> None:
        invoice_id = self.invoices[which % 2]
        cause = f"pay_{next(self.numbers)}"
        method = paying.MANUAL if manual else STRIPE

        def act(connection: Connection) -> None:
            paying.pay(connection, invoice_id, amount, method=method, cause_id=cause)

        with suppress(InvoiceConflict):  # of a void one, by hand
            if self.act(act, crashes):
                self.paid[invoice_id] += amount
                self.payments.append((invoice_id, cause, amount))

    @precondition(lambda self: self.payments)
    @rule(which=pick, part=st.sampled_from([1, 1, 1, 3]), crashes=sometimes)
    def take_back(self, which: int, part: int, crashes: bool) -> None:
        """A dispute opens, or a refund is made: also of what was taken back before."""
        invoice_id, _, paid = self.payments[which % len(self.payments)]
        amount = -(-paid // part)
        cause = f"dispute_{next(self.numbers)}"

        def act(connection: Connection) -> None:
            paying.take_back(connection, invoice_id, amount, method=STRIPE, cause_id=cause)

        if self.act(act, crashes):
            self.paid[invoice_id] -= amount
            self.taken.append((invoice_id, cause, amount))

    @precondition(lambda self: self.taken)
    @rule(which=pick, crashes=sometimes)
    def restore(self, which: int, crashes: bool) -> None:
        """It is won, or the refund failed."""
        invoice_id, cause, amount = self.taken[which % len(self.taken)]

        def act(connection: Connection) -> None:
            back = {"taken": cause, "method": STRIPE, "cause_id": f"{cause}/won"}
            paying.restore(connection, invoice_id, **back)

        if self.act(act, crashes):
            self.paid[invoice_id] += amount
            self.taken.remove((invoice_id, cause, amount))

    @rule(share=st.sampled_from([1, 1, 2, 3]))
    def spend(self, share: int) -> None:
        with transaction(self.database) as connection:
            nano = lock_tenant(connection, "ten_1", "USD") // share
            self.spent_nano += nano
            credit = Account("ten_1", AccountKind.TENANT_CREDIT, "USD")
            earnings = Account("ten_1", AccountKind.EARNINGS, "USD")
            cause = f"spent_{next(self.numbers)}"
            move = Transfer(cause, TransferKind.CHARGE, credit, earnings, nano, 0)
            post(connection, cause, [move])

    @rule(nano=st.sampled_from([1, MINOR, 10**9 + 1]))
    def grant(self, nano: int) -> None:
        with transaction(self.database) as connection:
            credits.grant(connection, "ten_1", nano, f"more_{next(self.numbers)}")
        self.granted_nano += nano

    @rule(which=pick, amount=amounts, crashes=sometimes)
    def credit_a_part(self, which: int, amount: int, crashes: bool) -> None:
        cause = f"note_{next(self.numbers)}"

        def act(connection: Connection) -> None:
            noted = {"reason": "too much", "reference": cause}
            credit_notes.credit(connection, self.invoices[which % 2], amount, **noted)

        with suppress(InvoiceConflict):
            self.act(act, crashes)

    @rule(which=pick, gives_up=st.booleans(), crashes=sometimes)
    def give_up_or_void(self, which: int, gives_up: bool, crashes: bool) -> None:
        change = issuing.give_up if gives_up else issuing.void
        with suppress(InvoiceConflict, Crash), transaction(self.database) as connection:
            change(connection, self.invoices[which % 2])
            assert change(connection, self.invoices[which % 2]) is False
            if crashes:
                raise Crash

    @precondition(lambda self: self.done)
    @rule(which=st.integers(0, 30))
    def replay(self, which: int) -> None:
        """Whatever was done before, once more."""
        with transaction(self.database) as connection:
            before = booked(connection)
            self.done[which % len(self.done)](connection)
            assert booked(connection) == before

    @invariant()
    def nobody_is_charged_twice_nor_forgiven(self) -> None:
        with snapshot(self.database) as connection:
            books_balance(connection)
            assert list(checks.check(connection)) == []
            found = [queries.invoice(connection, each) for each in self.invoices]
            books = balances(connection)
            theirs = balances(connection, None)
        ours = -sum(theirs.get(kind, 0) for kind in ("cash", "payment_clearing"))
        assert ours == self.granted_nano + sum(self.paid.values()) * MINOR
        given_up = sum(each.remaining_minor for each in found if each.row.state == "uncollectible")
        lost = -books.get("write_off", 0) - given_up * MINOR
        left = sum(each.remaining_minor for each in found)
        standing = [each for each in found if each.row.state != "void"]
        credited = sum(note.amount_minor for each in standing for note in each.credit_notes)
        invoiced = sum(each.row.due_minor for each in standing)
        assert books.get("tenant_credit", 0) - left * MINOR - lost == (
            self.granted_nano
            + (sum(self.paid.values()) + credited - invoiced) * MINOR
            - self.spent_nano
        )
        asked = lost
        for each in found:
            paid = self.paid[str(each.row.id)]
            not_paid = max(0, self.due(each) - max(0, paid))
            assert not_paid <= each.remaining_minor <= self.due(each)
            assert (each.row.state == "paid") <= (each.remaining_minor == 0)
            asked += (each.remaining_minor - not_paid + min(0, paid)) * MINOR
        assert lost + sum(min(0, paid) for paid in self.paid.values()) * MINOR >= 0
        assert asked <= self.spent_nano

    def due(self, invoice: Invoice) -> int:
        """What is due of an invoice after its credit notes."""
        if invoice.row.state == "void":
            return 0
        with snapshot(self.database) as connection:
            forgiven = connection.scalar(
                select(func.coalesce(func.sum(credit_notes_table.c.forgiven_minor), 0)).where(
                    credit_notes_table.c.invoice_id == invoice.row.id
                )
            )
        return invoice.row.due_minor - int(forgiven or 0)


def booked(connection: Connection) -> int:
    return connection.scalar(select(func.count()).select_from(transfers)) or 0


def drive(databases: Databases, folder: Path, examples: int) -> None:
    own = {"databases": databases, "settlement": settlement(folder)}
    run_state_machine_as_test(
        type("PaymentsMachine", (Payments,), own),
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture
def examples(request: pytest.FixtureRequest) -> int | None:
    return request.config.getoption("--examples")


def test_invoices_are_paid_once_whatever_is_disputed_on_sqlite(
    sqlite_files: SqliteFiles, tmp_path: Path, examples: int | None
) -> None:
    drive(sqlite_files, tmp_path, examples=examples or 20)


def test_invoices_are_paid_once_whatever_is_disputed_on_postgresql(
    postgres_server: PostgresServer, tmp_path: Path, examples: int | None
) -> None:
    drive(postgres_server, tmp_path, examples=examples or 5)
