"""Drafts as rows: an invoice that has no number yet, in place of the one before."""

from __future__ import annotations

from typing import Any

import uuid_utils
from sqlalchemy import Connection, delete, select

from billing.invoices import parties
from billing.invoices.drafting import Draft
from billing.invoices.tables import invoice_lines, invoices
from billing.ledger.accounts import lock_tenant
from billing.money import plain
from metering import clock
from metering.prepared import Prepared


def store(connection: Connection, draft: Draft) -> str:
    """Keep a draft in place of the one before; its id."""
    discard(connection, draft)
    return insert(connection, draft)


def discard(connection: Connection, draft: Draft) -> None:
    """Forget a draft that was kept of the same month, if there is one."""
    lock_tenant(connection, draft.tenant_id, draft.currency)
    ids = list(
        connection.scalars(select(invoices.c.id).where(*same(draft), invoices.c.state == "draft"))
    )
    if ids:
        connection.execute(delete(invoice_lines).where(invoice_lines.c.invoice_id.in_(ids)))
        connection.execute(delete(invoices).where(invoices.c.id.in_(ids)))


def same(draft: Draft) -> tuple[Any, ...]:
    """What an invoice of the same month and kind is found by."""
    return (
        invoices.c.tenant_id == draft.tenant_id,
        invoices.c.period == draft.period.label,
        invoices.c.kind == draft.kind,
        invoices.c.currency == draft.currency,
    )


_INVOICE = Prepared(invoices.insert())
_LINE = Prepared(invoice_lines.insert())


def insert(connection: Connection, draft: Draft) -> str:
    """Store a draft with its lines; its id."""
    invoice_id = f"inv_{uuid_utils.uuid7().hex}"
    _INVOICE.run(
        connection,
        {
            "id": invoice_id,
            "tenant_id": draft.tenant_id,
            "period": draft.period.label,
            "kind": draft.kind,
            "currency": draft.currency,
            "minor_nano": draft.minor_nano,
            "start_us": draft.period.start_us,
            "end_us": draft.period.end_us,
            "time_zone": draft.period.time_zone,
            "state": "draft",
            "subtotal_minor": draft.subtotal_minor,
            "tax_minor": draft.tax_minor,
            "total_minor": draft.total_minor,
            "credit_minor": draft.credit_minor,
            "due_minor": draft.due_minor,
            "charges_nano": draft.charges_nano,
            "returned_nano": draft.returned_nano,
            "issuer": parties.to_text(draft.issuer),
            "customer": parties.to_text(draft.customer),
            "created_at_us": clock.now_us(),
        },
    )
    rows = [
        {
            "invoice_id": invoice_id,
            "line": number,
            "tenant_id": draft.tenant_id,
            "kind": line.kind,
            "component": line.component,
            "detail": line.detail,
            "quantity": plain(line.quantity),
            "unit": line.unit,
            "unit_price": line.unit_price,
            "tariff_version_id": line.tariff_version_id,
            "period": line.period,
            "amount_nano": line.amount_nano,
            "amount_minor": line.amount_minor,
        }
        for number, line in enumerate(draft.lines)
    ]
    if rows:
        _LINE.run_each(connection, rows)
    return invoice_id
