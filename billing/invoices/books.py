"""What invoices book. Every amount is exact; the rounding of an invoice is a transfer of its own.

issued      receivable -> accrued       usage that was delivered and not yet paid
            receivable -> earnings      the period's own prices
            receivable -> tax
            receivable -> tenant_credit what the invoice gives back
            receivable <> rounding      so that the receivable is what the invoice says
paid        cash or payment_clearing -> receivable
void        each of the first, reversed
credited    earnings and tax -> receivable, or tenant_credit where it was paid already
given up    write_off -> receivable
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, select

from billing.invoices.drafting import Draft
from billing.invoices.tables import invoices
from billing.ledger.accounts import Account, AccountKind
from billing.ledger.posting import Transfer, TransferKind, post
from billing.periods import Period
from billing.tables import accounts, transfers

K = AccountKind


def issued(connection: Connection, invoice_id: str, draft: Draft) -> None:
    """Book an invoice, once."""
    post(connection, _cause(invoice_id), list(_issued(invoice_id, draft)))


def voided(connection: Connection, invoice_id: str) -> None:
    """Reverse all that issuing booked, once, at the times of the originals."""
    debited, credited = accounts.alias("debited"), accounts.alias("credited")
    rows = connection.execute(
        select(
            transfers,
            debited.c.kind.label("debit_kind"),
            credited.c.kind.label("credit_kind"),
            invoices.c.tenant_id,
        )
        .join(debited, debited.c.id == transfers.c.debit_account_id)
        .join(credited, credited.c.id == transfers.c.credit_account_id)
        .join(invoices, invoices.c.id == invoice_id)
        .where(transfers.c.transaction_id == _cause(invoice_id))
        .order_by(transfers.c.seq)
    )
    cause = f"{_cause(invoice_id)}/void"
    reversals = [
        Transfer(
            id=f"{row.id}/void",
            kind=TransferKind.REVERSAL,
            debit=Account(row.tenant_id, AccountKind(row.credit_kind), row.currency),
            credit=Account(row.tenant_id, AccountKind(row.debit_kind), row.currency),
            amount_nano=row.amount_nano,
            event_time_us=row.event_time_us,
            reverses_id=row.id,
        )
        for row in rows
    ]
    post(connection, cause, reversals)


def paid(
    connection: Connection,
    *,
    payment_id: str,
    tenant_id: str,
    currency: str,
    by_provider: bool,
    settles: AccountKind,
    settled_nano: int,
    surplus_nano: int,
    lost_nano: int,
    at_us: int,
) -> None:
    """Book a payment: what it settles, and what is above that into the tenant's credit.

    `settles` is the receivable, or the write-off of an invoice that had been given up. Negative
    amounts are a payment taken back, of which `lost_nano` is nowhere to be had; negative, that is
    made good.
    """
    source = Account(None, K.PAYMENT_CLEARING if by_provider else K.CASH, currency)
    target = Account(tenant_id, settles, currency)
    kind = TransferKind.PAYMENT
    moves = [
        _signed(f"{payment_id}/settled", kind, source, target, settled_nano, at_us),
        _signed(
            f"{payment_id}/surplus",
            kind,
            source,
            Account(tenant_id, K.TENANT_CREDIT, currency),
            surplus_nano,
            at_us,
        ),
        _signed(
            f"{payment_id}/lost",
            TransferKind.WRITE_OFF,
            Account(tenant_id, K.WRITE_OFF, currency),
            source,
            lost_nano,
            at_us,
        ),
    ]
    post(connection, payment_id, moves)


def credited(
    connection: Connection,
    *,
    note_id: str,
    tenant_id: str,
    currency: str,
    net_nano: int,
    tax_nano: int,
    forgiven_nano: int,
    at_us: int,
) -> None:
    """Book a credit note: first against what is still due, the rest into the tenant's credit."""
    cause = f"credit_note/{note_id}"
    receivable = Account(tenant_id, K.RECEIVABLE, currency)
    kind = TransferKind.CREDIT_NOTE
    moves = [
        _signed(
            f"{cause}/net",
            kind,
            Account(tenant_id, K.EARNINGS, currency),
            receivable,
            net_nano,
            at_us,
        ),
        _signed(
            f"{cause}/tax", kind, Account(tenant_id, K.TAX, currency), receivable, tax_nano, at_us
        ),
        _signed(
            f"{cause}/return",
            TransferKind.RETURN,
            receivable,
            Account(tenant_id, K.TENANT_CREDIT, currency),
            net_nano + tax_nano - forgiven_nano,
            at_us,
        ),
    ]
    post(connection, cause, moves)


def given_up(
    connection: Connection,
    *,
    invoice_id: str,
    after: int,
    tenant_id: str,
    currency: str,
    nano: int,
    at_us: int,
) -> None:
    """Write off what nobody will pay, once `after` so many payments: those taken back count, too.

    What was paid after all and taken back again is given up again.
    """
    cause = f"{_cause(invoice_id)}/uncollectible/{after}"
    move = _signed(
        cause,
        TransferKind.WRITE_OFF,
        Account(tenant_id, K.WRITE_OFF, currency),
        Account(tenant_id, K.RECEIVABLE, currency),
        nano,
        at_us,
    )
    post(connection, cause, [move])


def _issued(invoice_id: str, draft: Draft) -> Iterator[Transfer]:
    cause = _cause(invoice_id)

    def account(kind: AccountKind) -> Account:
        return Account(draft.tenant_id, kind, draft.currency)

    def move(
        name: str, kind: TransferKind, credit: AccountKind, nano: int, period: Period
    ) -> Transfer:
        # The last moment of the service: what is invoiced of a period belongs to that period.
        return _signed(
            f"{cause}/{name}",
            kind,
            account(K.RECEIVABLE),
            account(credit),
            nano,
            period.end_us - 1,
        )

    for part in draft.parts:
        label, kind = part.period.label, TransferKind.INVOICE
        prices = sum(line.amount_nano for line in part.lines if line.kind == "period")
        # Named as `usage.accrued` looks for it.
        yield move(f"accrued/{label}", kind, K.ACCRUED, part.accrued_nano, part.period)
        yield move(f"period/{label}", kind, K.EARNINGS, prices, part.period)
    tax = draft.tax_minor * draft.minor_nano
    yield move("tax", TransferKind.TAX, K.TAX, tax, draft.period)
    yield move("return", TransferKind.RETURN, K.TENANT_CREDIT, draft.returned_nano, draft.period)
    rounding = draft.due_minor * draft.minor_nano - max(draft.owed_nano, 0)
    yield move("rounding", TransferKind.ROUNDING, K.ROUNDING, rounding, draft.period)


def _signed(  # noqa: PLR0917 - as a transfer lists them
    name: str, kind: TransferKind, debit: Account, credit: Account, nano: int, at_us: int
) -> Transfer:
    """A transfer of a signed amount: a negative one goes the other way."""
    if nano < 0:
        debit, credit = credit, debit
    return Transfer(name, kind, debit, credit, abs(nano), at_us)


def _cause(invoice_id: str) -> str:
    return f"invoice/{invoice_id}"
