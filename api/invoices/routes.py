"""`/invoices` for whoever pays them, `/admin/invoices` for whoever issues them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import MediaType, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from api import audit, cursors, tenants
from api.auth import Principal, Scope, requires, tenant_in_scope, visible_tenant
from api.bodies import StrictBody
from api.error_reports import documented
from api.errors import Forbidden, InvalidCursor, InvalidParameter, NotFound, Unauthenticated
from api.invoices.schemas import (
    AnyPeriodQuery,
    ClosedView,
    CloseRequest,
    CreditNoteRequest,
    InvoicePage,
    InvoiceRowView,
    PaymentRequest,
    PeriodQuery,
)
from api.schemas import CursorQuery, LimitQuery, PathId, TenantQuery
from billing.errors import InvalidAmount, InvalidPeriod, InvoiceConflict, InvoiceNotFound
from billing.invoices import closing, credit_notes, documents, issuing, paying, pdf, queries
from billing.invoices.minor_units import parse_minor
from billing.invoices.queries import Invoice
from billing.payments import collection
from metering.database import snapshot, transaction

LISTING = "invoices"
PDF = "application/pdf"
REFUSALS = (Unauthenticated, Forbidden, NotFound)
CHANGES = (InvoiceConflict, InvoiceNotFound, Unauthenticated, Forbidden)


@get(
    "/",
    guards=[requires(Scope.READ_BILLING)],
    summary="List invoices",
    responses=documented(InvalidCursor, *REFUSALS),
    sync_to_thread=True,
)
def list_invoices(
    *,
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
    period: AnyPeriodQuery = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = cursors.PAGE_DEFAULT,
) -> InvoicePage:
    """A tenant's invoices, or, for the operator, everybody's; drafts too."""
    after = cursors.decode(LISTING, cursor)
    with snapshot(database) as connection:
        found = queries.rows(
            connection,
            tenant_id=visible_tenant(principal, tenant_id),
            period=period,
            limit=limit + 1,
            cursor=after,
        )
    shown, following = cursors.page(LISTING, found, limit, lambda row: (row.created_at_us, row.id))
    return InvoicePage([InvoiceRowView.of(row) for row in shown], following)


@get(
    "/preview",
    guards=[requires(Scope.READ_BILLING)],
    summary="Preview an invoice",
    responses=documented(InvalidPeriod, *REFUSALS),
    sync_to_thread=True,
)
def preview_invoice(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    period: PeriodQuery,
    tenant_id: TenantQuery = None,
) -> dict[str, Any]:
    """What closing this month would issue now, also while it still runs. Changes nothing."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return documents.to_json(queries.of_draft(closing.preview(connection, asked, period)))


@get(
    "/{invoice_id:str}",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read an invoice",
    responses=documented(InvalidParameter, InvoiceNotFound, Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def read_invoice(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    invoice_id: PathId,
) -> dict[str, Any]:
    """One invoice by id or number, of schema `dflash.invoice/1`, with its exact amounts."""
    return documents.to_json(_find(database, principal, invoice_id))


@get(
    "/{invoice_id:str}/html",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read an invoice as a page",
    responses=documented(InvalidParameter, InvoiceNotFound, Unauthenticated, Forbidden),
    media_type=MediaType.HTML,
    sync_to_thread=True,
)
def read_invoice_page(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    invoice_id: PathId,
) -> str:
    """The same as a page that loads nothing else."""
    return documents.to_html(_find(database, principal, invoice_id))


@get(
    "/{invoice_id:str}/pdf",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read an invoice as PDF",
    responses=documented(InvalidParameter, InvoiceNotFound, Unauthenticated, Forbidden),
    media_type=PDF,
    sync_to_thread=True,
)
def read_invoice_paper(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    invoice_id: PathId,
) -> Response[bytes]:
    """The same on paper."""
    found = _find(database, principal, invoice_id)
    name = found.row.number or found.row.id
    disposition = f'attachment; filename="{name}.pdf"'
    return Response(pdf.to_pdf(found), media_type=PDF, headers={"content-disposition": disposition})


@post(
    "/close",
    guards=[requires(Scope.ADMINISTER)],
    summary="Close a month",
    responses=documented(InvalidPeriod, InvoiceConflict, *REFUSALS),
    status_code=200,
    sync_to_thread=True,
)
def close_period(
    data: JSONBody[CloseRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
) -> ClosedView:
    """Issue a tenant's invoice, or keep a draft of it while the grace for late events lasts."""
    with snapshot(database) as connection:
        tenants.require(connection, data.tenant_id)

    def witness(connection: Connection, invoice_id: str) -> None:
        row = issuing.locked(connection, invoice_id)
        collection.collect(connection, invoice_id)
        _audit(connection, principal, "invoice.issued", row)

    if data.correct:
        return ClosedView.of(closing.correct(database, data.period, data.tenant_id, witness))
    (closed,) = closing.close(
        database, data.period, data.tenant_id, witness, despite_waiting=data.despite_waiting
    )
    return ClosedView.of(closed)


@post(
    "/{invoice_id:str}/void",
    guards=[requires(Scope.ADMINISTER)],
    summary="Void an invoice",
    responses=documented(InvalidParameter, *CHANGES),
    status_code=200,
    sync_to_thread=True,
)
def void_invoice(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    invoice_id: PathId,
) -> dict[str, Any]:
    """Take back an invoice that nobody paid; its month may then be closed again."""
    return _change(database, principal, invoice_id, "invoice.voided", issuing.void)


@post(
    "/{invoice_id:str}/give-up",
    guards=[requires(Scope.ADMINISTER)],
    summary="Give an invoice up",
    responses=documented(InvalidParameter, *CHANGES),
    status_code=200,
    sync_to_thread=True,
)
def give_up_invoice(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    invoice_id: PathId,
) -> dict[str, Any]:
    """Mark an invoice uncollectible, and write off what is left of it."""
    return _change(database, principal, invoice_id, "invoice.given_up", issuing.give_up)


@post(
    "/{invoice_id:str}/credit",
    guards=[requires(Scope.ADMINISTER)],
    summary="Issue a credit note",
    responses=documented(InvalidAmount, *CHANGES),
    status_code=200,
    sync_to_thread=True,
)
def credit_invoice(
    data: JSONBody[CreditNoteRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    invoice_id: PathId,
) -> dict[str, Any]:
    """Take back a part of an invoice: first of what is due, then into the tenant's credit."""

    def credit(connection: Connection, found: str) -> None:
        minor = parse_minor(data.amount, issuing.locked(connection, found)["minor_nano"])
        credit_notes.credit(connection, found, minor, reason=data.reason, reference=data.reference)

    detail = {"amount": data.amount, "reference": data.reference}
    return _change(database, principal, invoice_id, "invoice.credited", credit, **detail)


@post(
    "/{invoice_id:str}/payments",
    guards=[requires(Scope.ADMINISTER)],
    summary="Take a payment in",
    responses=documented(InvalidAmount, *CHANGES),
    status_code=200,
    sync_to_thread=True,
)
def pay_invoice(
    data: JSONBody[PaymentRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    invoice_id: PathId,
) -> dict[str, Any]:
    """Note what was paid outside a payment provider; what is too much goes into credit."""

    def pay(connection: Connection, found: str) -> bool:
        minor = parse_minor(data.amount, issuing.locked(connection, found)["minor_nano"])
        return paying.pay(connection, found, minor, method=paying.MANUAL, cause_id=data.reference)

    detail = {"amount": data.amount, "reference": data.reference}
    return _change(database, principal, invoice_id, "invoice.paid", pay, **detail)


def _find(database: Database, principal: Principal, reference: str) -> Invoice:
    with snapshot(database) as connection:
        return queries.invoice(connection, reference, visible_tenant(principal, None))


def _change(
    database: Database,
    principal: Principal,
    reference: str,
    action: str,
    change: Callable[[Connection, str], bool | None],
    /,
    **detail: Any,
) -> dict[str, Any]:
    with transaction(database) as connection:
        row = issuing.locked(connection, reference)
        if change(connection, row["id"]) is not False:
            _audit(connection, principal, action, row, **detail)
        collection.tell(connection, row["id"])
        return documents.to_json(queries.invoice(connection, row["id"]))


def _audit(
    connection: Connection, principal: Principal, action: str, row: dict[str, Any], **detail: Any
) -> None:
    audit.write(
        connection,
        actor=principal.key_id,
        action=action,
        subject=row["number"] or row["id"],
        tenant_id=row["tenant_id"],
        **detail,
    )


invoices_router = Router(
    "/invoices",
    route_handlers=[
        list_invoices,
        preview_invoice,
        read_invoice,
        read_invoice_page,
        read_invoice_paper,
    ],
    tags=["invoices"],
)
invoice_desk_router = Router(
    "/admin/invoices",
    route_handlers=[close_period, void_invoice, give_up_invoice, credit_invoice, pay_invoice],
    dto=StrictBody,
    return_dto=None,
    tags=["administration"],
)
