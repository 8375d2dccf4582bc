"""Months closed while money moves, and what is done with their invoices."""

from __future__ import annotations

from contextlib import suppress

from billing_sweeps import expire_holds
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from money_world import HOLD_US, TENANTS, World, sometimes
from sqlalchemy import func, select

from billing import charged_hours, periods
from billing.errors import InvoiceConflict
from billing.invoices import closing, credit_notes, issuing, paying
from billing.invoices.parties import Issuer
from billing.invoices.queries import Invoice, invoice
from billing.invoices.tables import invoices
from billing.ledger import holds
from billing.tables import rated_lines
from metering.database import snapshot, transaction

ISSUED = ("final", "paid", "uncollectible")
amounts = st.sampled_from([1, 30, 75, 80])


class Invoicing(World):
    """Invoices from the close to the payment, and everything that undoes them."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: set[str] = set()
        self.final: dict[str, Invoice] = {}
        self.taken: set[tuple[str, str]] = set()

    @rule(renews=st.booleans())
    def close_a_month(self, renews: bool) -> None:
        """It ends, its grace goes by, and everyone's is closed, twice."""
        month = periods.containing(self.now_us, "UTC")
        self.now_us = month.end_us + Issuer().grace_us
        with transaction(self.database) as connection:
            if renews:
                holds.renew(connection, self.running, self.now_us + HOLD_US)
            expire_holds(connection, self.now_us)
        self.closed.add(month.label)
        self.close_all()
        self.keep()

    def close_all(self) -> None:
        """In order, with the months before that something was charged for when it came late."""
        line = rated_lines.c
        with snapshot(self.database) as connection:
            charged = line.amount_nano != 0
            first_us = connection.scalar(select(func.min(line.event_time_us)).where(charged))
        if self.closed and first_us is not None:
            label = periods.containing(first_us, "UTC").label
            while label < max(self.closed):
                self.closed.add(label)
                label = periods.following(label)
        for label in sorted(self.closed):
            first = list(closing.close(self.database, label))
            again = list(closing.close(self.database, label))
            assert len(first) == len(TENANTS)
            assert {each.outcome for each in again} == {closing.Outcome.BEFORE}

    def teardown(self) -> None:
        self.close_all()
        super().teardown()

    @rule()
    def count_charges(self) -> None:
        """The hours that are over; what comes later touches them again."""
        charged_hours.count_all(self.database, self.now_us)

    @precondition(lambda self: self.closed)
    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    def bill_what_came_late(self, data: st.DataObject, tenant: str) -> None:
        label = data.draw(st.sampled_from(sorted(self.closed)))
        with suppress(InvoiceConflict):  # voided, so that it is open again
            closing.correct(self.database, label, tenant)
        self.keep()

    @precondition(lambda self: self.final)
    @rule(data=st.data(), amount=amounts, cause=st.sampled_from("ab"), crashes=sometimes)
    def pay(self, data: st.DataObject, amount: int, cause: str, crashes: bool) -> None:
        invoice_id = data.draw(st.sampled_from(sorted(self.final)))
        with suppress(InvoiceConflict), self.committing(crashes) as connection:
            paid = {"method": paying.MANUAL, "cause_id": cause}
            paying.pay(connection, invoice_id, amount, **paid)
            assert paying.pay(connection, invoice_id, amount, **paid) is False

    @precondition(lambda self: self.final)
    @rule(data=st.data(), amount=amounts, cause=st.sampled_from("cd"), crashes=sometimes)
    def take_back(self, data: st.DataObject, amount: int, cause: str, crashes: bool) -> None:
        invoice_id = data.draw(st.sampled_from(sorted(self.final)))
        with self.committing(crashes) as connection:
            lost = {"method": "stripe", "cause_id": cause}
            paying.take_back(connection, invoice_id, amount, **lost)
            assert paying.take_back(connection, invoice_id, amount, **lost) is False
            self.taken.add((invoice_id, cause))

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), crashes=sometimes)
    def restore(self, data: st.DataObject, crashes: bool) -> None:
        invoice_id, cause = data.draw(st.sampled_from(sorted(self.taken)))
        back = {"taken": cause, "method": "stripe", "cause_id": f"{cause}/won"}
        with suppress(InvoiceConflict), self.committing(crashes) as connection:  # or it crashed
            paying.restore(connection, invoice_id, **back)
            assert paying.restore(connection, invoice_id, **back) is False

    @precondition(lambda self: self.final)
    @rule(data=st.data(), amount=amounts, reference=st.sampled_from("ef"), crashes=sometimes)
    def credit_a_part(
        self, data: st.DataObject, amount: int, reference: str, crashes: bool
    ) -> None:
        invoice_id = data.draw(st.sampled_from(sorted(self.final)))
        noted = {"reason": "too much", "reference": reference}
        with suppress(InvoiceConflict), self.committing(crashes) as connection:
            number = credit_notes.credit(connection, invoice_id, amount, **noted)
            assert credit_notes.credit(connection, invoice_id, amount, **noted) == number

    @precondition(lambda self: self.final)
    @rule(data=st.data(), gives_up=st.booleans(), crashes=sometimes)
    def give_up_or_void(self, data: st.DataObject, gives_up: bool, crashes: bool) -> None:
        invoice_id = data.draw(st.sampled_from(sorted(self.final)))
        with suppress(InvoiceConflict), self.committing(crashes) as connection:
            for _ in range(2):
                (issuing.give_up if gives_up else issuing.void)(connection, invoice_id)
        self.keep()

    def keep(self) -> None:
        """No line nor sum of an invoice that was issued before is another now; lines add up."""
        with snapshot(self.database) as connection:
            standing = connection.scalars(select(invoices.c.id).where(invoices.c.state != "draft"))
            found = {each: invoice(connection, each) for each in standing}
        for invoice_id, now in found.items():
            before = self.final.setdefault(invoice_id, now)
            assert (now.lines, now.issuer, now.customer) == (
                before.lines,
                before.issuer,
                before.customer,
            )
            assert sum(line.amount_minor for line in now.lines) == now.row.due_minor
