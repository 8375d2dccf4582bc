"""The wire of invoices. Amounts are decimal strings with all the currency's decimals."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, TypeAlias

import msgspec
from litestar.params import QueryParameter
from msgspec import Meta

from api.schemas import LINE, Amount, to_time, to_time_or_null
from billing.invoices.closing import Closed
from billing.invoices.minor_units import format_minor
from billing.invoices.queries import InvoiceRow

MONTH = r"^[0-9]{4}-(0[1-9]|1[0-2])(?!\n)$"
_REFERENCE = r"^[A-Za-z0-9_.:-]{1,64}(?!\n)$"

PeriodQuery: TypeAlias = Annotated[
    str, QueryParameter(pattern=MONTH, description="A month, such as 2026-11")
]
AnyPeriodQuery: TypeAlias = Annotated[
    str | None, QueryParameter(pattern=MONTH, description="Only this month, such as 2026-11")
]
PeriodLabel: TypeAlias = Annotated[str, Meta(pattern=MONTH, examples=["2026-11"])]
Reference: TypeAlias = Annotated[
    str,
    Meta(
        pattern=_REFERENCE,
        description="Yours to choose; the same again changes nothing",
        examples=["ticket-1203"],
    ),
]


class InvoiceRowView(msgspec.Struct, frozen=True):
    """One invoice of the list; whole, it is at `/invoices/{id}`."""

    id: str
    number: str | None
    tenant_id: str
    period: str
    kind: str
    state: str
    currency: str
    subtotal: str
    tax: str
    total: str
    paid_from_credit: str
    due: str
    issued_at: dt.datetime | None
    due_at: dt.datetime | None

    @classmethod
    def of(cls, row: InvoiceRow) -> InvoiceRowView:
        """The wire's view of a row."""

        def money(minor: int) -> str:
            return format_minor(minor, row.minor_nano)

        return cls(
            id=row.id or "",
            number=row.number,
            tenant_id=row.tenant_id,
            period=row.period,
            kind=row.kind,
            state=row.state,
            currency=row.currency,
            subtotal=money(row.subtotal_minor),
            tax=money(row.tax_minor),
            total=money(row.total_minor),
            paid_from_credit=money(row.credit_minor),
            due=money(row.due_minor),
            issued_at=to_time_or_null(row.finalised_at_us),
            due_at=to_time_or_null(row.due_at_us),
        )


class InvoicePage(msgspec.Struct, frozen=True):
    """Invoices, newest first; `next_cursor` is null on the last page."""

    items: list[InvoiceRowView]
    next_cursor: str | None


class CloseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A month to close for one tenant; `correct` issues what came late into a closed one.

    A month is left open (409) while reported usage of it waits for its price; `despite_waiting`
    leaves that to a later month.
    """

    tenant_id: Annotated[str, Meta(pattern=_REFERENCE)]
    period: PeriodLabel
    correct: bool = False
    despite_waiting: bool = False


class ClosedView(msgspec.Struct, frozen=True):
    """What closing did: `issued`, `drafted` within the grace, `nothing to bill`, `closed before`.

    A close repeated after it was issued is `closed before`.
    """

    tenant_id: str
    outcome: str
    invoice_id: str | None
    total: str | None
    due: str | None
    service_start: dt.datetime | None
    service_end: dt.datetime | None

    @classmethod
    def of(cls, closed: Closed) -> ClosedView:
        """The wire's view of one tenant's close."""
        draft = closed.draft
        if draft is None:
            return cls(
                closed.tenant_id, closed.outcome.value, closed.invoice_id, None, None, None, None
            )
        return cls(
            tenant_id=closed.tenant_id,
            outcome=closed.outcome.value,
            invoice_id=closed.invoice_id,
            total=format_minor(draft.total_minor, draft.minor_nano),
            due=format_minor(draft.due_minor, draft.minor_nano),
            service_start=to_time(draft.period.start_us),
            service_end=to_time(draft.period.end_us),
        )


class CreditNoteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an invoice to take back, tax included."""

    amount: Amount
    reason: Annotated[str, Meta(min_length=1, max_length=200, pattern=LINE)]
    reference: Reference


class PaymentRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A payment that came outside a payment provider."""

    amount: Amount
    reference: Reference
