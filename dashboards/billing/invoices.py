"""A tenant's invoices: the list, this month so far, and each invoice as page and paper."""

from __future__ import annotations

from litestar import MediaType, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromQuery

from billing import periods
from billing.errors import InvoiceNotFound
from billing.invoices import closing, documents, pdf, queries, wording
from billing.invoices.queries import Invoice
from billing.payments import collection
from dashboards import cursors
from dashboards.access import TenantDesk
from dashboards.injected import ADesk, AHost, PathId
from dashboards.protocols import Host
from dashboards.rendering import page, url
from dashboards.sessions import PageRequest
from metering import clock
from metering.database import snapshot

PAGE_SIZE = 24


@get("/invoices", sync_to_thread=True)
def show_invoices(
    request: PageRequest,
    host: AHost,
    desk: ADesk,
    cursor: FromQuery[str | None] = None,
) -> Response[str]:
    """The tenant's invoices, newest first, below what this month comes to so far."""
    after = cursors.decode(cursor, cursors.TimedPosition)
    position = (after.at_us, after.id) if after else None
    label = periods.containing(clock.now_us(), desk.zone.key).label
    with snapshot(host.database) as connection:
        found = queries.rows(
            connection, tenant_id=desk.tenant_id, limit=PAGE_SIZE + 1, cursor=position
        )
        running = queries.of_draft(closing.preview(connection, desk.tenant_id, label))
        account = collection.account(connection, desk.tenant_id)
    shown = found[:PAGE_SIZE]
    more = len(found) > PAGE_SIZE
    following = cursors.encode((shown[-1].created_at_us, shown[-1].id)) if more else ""
    return page(
        request,
        "billing/invoices.html",
        desk=desk,
        rows=shown,
        running=running,
        wording=wording,
        failing_since_us=account and account.past_due_since_us,
        cursor=cursor,
        next_url=url(f"/invoices?cursor={following}") if more else None,
    )


@get("/invoices/{invoice_id:str}", sync_to_thread=True)
def show_invoice(
    request: PageRequest, host: AHost, desk: ADesk, invoice_id: PathId
) -> Response[str]:
    """One invoice with its lines, its payments and its credit notes."""
    return page(
        request,
        "billing/invoice.html",
        desk=desk,
        invoice=_find(host, desk, invoice_id),
        wording=wording,
    )


@get("/invoices/{invoice_id:str}/pdf", sync_to_thread=True)
def download_invoice(host: AHost, desk: ADesk, invoice_id: PathId) -> Response[bytes]:
    """The invoice on paper."""
    found = _find(host, desk, invoice_id)
    disposition = f'attachment; filename="{found.row.number or found.row.id}.pdf"'
    return Response(
        pdf.to_pdf(found),
        media_type="application/pdf",
        headers={"content-disposition": disposition},
    )


@get("/invoices/{invoice_id:str}/json", sync_to_thread=True, media_type=MediaType.JSON)
def download_figures(host: AHost, desk: ADesk, invoice_id: PathId) -> dict[str, object]:
    """The invoice's figures, exact ones among them."""
    return documents.to_json(_find(host, desk, invoice_id))


def _find(host: Host, desk: TenantDesk, invoice_id: str) -> Invoice:
    with snapshot(host.database) as connection:
        try:
            return queries.invoice(connection, invoice_id, desk.tenant_id)
        except InvoiceNotFound:
            raise NotFoundException("There is no such invoice.") from None


HANDLERS = (show_invoices, show_invoice, download_invoice, download_figures)
