"""An invoice as JSON and as HTML. Amounts are decimal strings, exact where they say so."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from billing.invoices import wording
from billing.invoices.parties import Customer, Issuer
from billing.invoices.queries import Invoice
from billing.money import format_nano
from billing.receipt_documents import iso

SCHEMA = "dflash.invoice/1"
TEMPLATES = Path(__file__).parent / "templates"


def to_json(invoice: Invoice) -> dict[str, Any]:
    """The whole invoice as plain JSON values."""
    row = invoice.row

    def money(minor: int) -> str:
        return wording.amount(invoice, minor)

    def moment(at_us: int | None) -> str | None:
        return None if at_us is None else iso(at_us)

    return {
        "schema": SCHEMA,
        "id": row.id,
        "number": row.number,
        "kind": row.kind,
        "state": row.state,
        "tenant_id": row.tenant_id,
        "period": row.period,
        "start": iso(row.start_us),
        "end": iso(row.end_us),
        "time_zone": row.time_zone,
        "currency": row.currency,
        "issuer": _party(invoice.issuer),
        "customer": {
            **_party(invoice.customer),
            "tax_name": invoice.customer.tax_name,
            "tax_percent": f"{invoice.customer.tax_percent:f}",
        },
        "lines": [
            {
                "kind": line.kind,
                "component": line.component,
                "detail": line.detail,
                "description": wording.description(line, invoice),
                "service_period": line.period,
                "quantity": line.quantity,
                "unit": line.unit,
                "unit_price": line.unit_price,
                "exact": format_nano(line.amount_nano),
                "amount": money(line.amount_minor),
            }
            for line in invoice.lines
        ],
        "subtotal": money(row.subtotal_minor),
        "tax": money(row.tax_minor),
        "total": money(row.total_minor),
        "paid_from_credit": money(row.credit_minor),
        "returned_to_credit": format_nano(row.returned_nano),
        "due": money(row.due_minor),
        "remaining": money(invoice.remaining_minor),
        "payments": [
            {
                "amount": money(payment.amount_minor),
                "method": payment.method,
                "paid_at": iso(payment.paid_at_us),
            }
            for payment in invoice.payments
        ],
        "credit_notes": [
            {
                "number": note.number,
                "reason": note.reason,
                "net": money(note.net_minor),
                "tax": money(note.tax_minor),
                "amount": money(note.amount_minor),
                "issued_at": iso(note.issued_at_us),
            }
            for note in invoice.credit_notes
        ],
        "issued_at": moment(row.finalised_at_us),
        "due_at": moment(row.due_at_us),
        "resolved_at": moment(row.resolved_at_us),
    }


def to_html(invoice: Invoice) -> str:
    """The invoice as a page that needs nothing else: to read, to print, to send."""
    return _environment().get_template("invoice.html").render(invoice=invoice, row=invoice.row)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(wording=wording)
    return made


def _party(party: Issuer | Customer) -> dict[str, str]:
    return {"name": party.name, "address": party.address, "tax_id": party.tax_id}
