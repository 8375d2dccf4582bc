"""Tables of invoices. `*_minor` are whole minor units (cents), `*_nano` exact amounts.

The lines and terms of an invoice that left the draft never change, which triggers hold; what
changes is its state, and what is added beside it: payments and credit notes.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from billing.tables import adjustments, metadata, tariff_versions
from metering.tables import Id, tenants

# Lines that charge something; the others are tax, and what credit paid.
LINE_KINDS = ("usage", "adjustment", "period")
# Invoices that do not stand: what is on them is not billed.
UNBILLED_STATES = ("draft", "void")

# One row for each period of a tenant that was closed, from the moment on when what still arrives
# for it is late.
billing_periods = Table(
    "billing_periods",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("label", String(8), primary_key=True),
    Column("start_us", BigInteger, nullable=False),
    Column("end_us", BigInteger, nullable=False),
    Column("time_zone", String(64), nullable=False),
    Column("late", Integer, nullable=False),  # how often something arrived since
    Column("late_billed", Integer, nullable=False),  # how much of that was looked at
    Column("closing_at_us", BigInteger, nullable=False),
    Column("closed_at_us", BigInteger),  # null while closing
    CheckConstraint("end_us > start_us", name="half_open"),
    CheckConstraint("late_billed BETWEEN 0 AND late", name="billed_what_came"),
)

invoices = Table(
    "invoices",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("period", String(8), nullable=False),
    Column("kind", String(24), nullable=False),  # "period", "correction-1", ...
    Column("currency", String(3), nullable=False),
    Column("minor_nano", BigInteger, nullable=False),  # nano in one minor unit
    Column("start_us", BigInteger, nullable=False),
    Column("end_us", BigInteger, nullable=False),
    Column("time_zone", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("number", String(40), unique=True),  # null while a draft
    Column("subtotal_minor", BigInteger, nullable=False),  # charges, before tax
    Column("tax_minor", BigInteger, nullable=False),
    Column("total_minor", BigInteger, nullable=False),
    Column("credit_minor", BigInteger, nullable=False),  # of that, paid from credit; signed
    Column("due_minor", BigInteger, nullable=False),  # what is left to pay
    Column("charges_nano", BigInteger, nullable=False),  # what the subtotal was rounded from
    Column("returned_nano", BigInteger, nullable=False),  # put back into the tenant's credit
    Column("issuer", Text, nullable=False),  # JSON, as it was
    Column("customer", Text, nullable=False),  # JSON, as it was
    Column("created_at_us", BigInteger, nullable=False),
    Column("finalised_at_us", BigInteger),
    Column("due_at_us", BigInteger),
    Column("resolved_at_us", BigInteger),
    CheckConstraint("state IN ('draft', 'final', 'paid', 'void', 'uncollectible')", name="state"),
    CheckConstraint("(state = 'draft') = (number IS NULL)", name="numbered_when_final"),
    CheckConstraint("(state = 'draft') = (finalised_at_us IS NULL)", name="dated_when_final"),
    CheckConstraint("total_minor = subtotal_minor + tax_minor", name="total"),
    CheckConstraint("due_minor = total_minor - credit_minor", name="due"),
    CheckConstraint("due_minor >= 0", name="due_not_negative"),
    CheckConstraint("returned_nano >= 0", name="returned_not_negative"),
)
Index(
    "uq_invoices_once",
    invoices.c.tenant_id,
    invoices.c.period,
    invoices.c.kind,
    invoices.c.currency,
    unique=True,
    sqlite_where=text("state <> 'void'"),
    postgresql_where=text("state <> 'void'"),
)

invoice_lines = Table(
    "invoice_lines",
    metadata,
    Column("invoice_id", Id, ForeignKey(invoices.c.id), primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("component", String(64), nullable=False),
    Column("detail", String(64), nullable=False),
    Column("quantity", String(60), nullable=False),  # decimal, signed
    Column("unit", String(24), nullable=False),
    Column("unit_price", String(40)),  # decimal; null where the line has no single one
    Column("tariff_version_id", Id, ForeignKey(tariff_versions.c.id)),
    Column("period", String(8), nullable=False),  # of the service, which may be an earlier one
    Column("amount_nano", BigInteger, nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    CheckConstraint("kind IN ('usage', 'adjustment', 'period', 'tax', 'credit')", name="kind"),
)
Index("ix_invoice_lines_tenant_period", invoice_lines.c.tenant_id, invoice_lines.c.period)

invoice_numbers = Table(
    "invoice_numbers",
    metadata,
    Column("series", String(16), primary_key=True),
    Column("last", BigInteger, nullable=False),
)

invoice_payments = Table(
    "invoice_payments",
    metadata,
    Column("id", String(128), primary_key=True),  # derived from its cause: idempotent
    Column("invoice_id", Id, ForeignKey(invoices.c.id), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),  # negative: taken back, as by a dispute
    Column("settled_minor", BigInteger, nullable=False),  # of that, of the invoice
    Column("credited_nano", BigInteger, nullable=False),  # of that, in the tenant's credit
    Column("method", String(16), nullable=False),
    Column("paid_at_us", BigInteger, nullable=False),
    CheckConstraint("amount_minor <> 0", name="not_zero"),
)
Index("ix_invoice_payments_invoice", invoice_payments.c.invoice_id)

credit_notes = Table(
    "credit_notes",
    metadata,
    Column("id", Id, primary_key=True),
    Column("invoice_id", Id, ForeignKey(invoices.c.id), nullable=False),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("reference", String(64), nullable=False),  # the caller's: the same again is the same
    Column("number", String(40), nullable=False, unique=True),
    Column("reason", String(200), nullable=False),
    Column("net_minor", BigInteger, nullable=False),
    Column("tax_minor", BigInteger, nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("forgiven_minor", BigInteger, nullable=False),  # of that, taken off what was still due
    Column("issued_at_us", BigInteger, nullable=False),
    UniqueConstraint("invoice_id", "reference"),
    CheckConstraint("amount_minor = net_minor + tax_minor AND amount_minor > 0", name="amount"),
    CheckConstraint("forgiven_minor BETWEEN 0 AND amount_minor", name="forgiven"),
)

invoice_issuer = Table(
    "invoice_issuer",
    metadata,
    Column("id", String(8), primary_key=True),  # "issuer": there is one
    Column("name", String(200), nullable=False),
    Column("address", Text, nullable=False),
    Column("tax_id", String(64), nullable=False),
    Column("series", String(16), nullable=False),
    Column("grace_us", BigInteger, nullable=False),
    Column("due_days", Integer, nullable=False),
    # After the day when an invoice is due: when its customer is reminded, and from when on nothing
    # more is had on account; null: that goes on.
    Column("reminder_days", String(60), nullable=False, server_default=text("'1,7,14'")),
    Column("pause_days", Integer, server_default=text("14")),
    CheckConstraint("id = 'issuer'", name="one"),
    CheckConstraint("grace_us >= 0 AND due_days >= 0", name="not_negative"),
)

invoice_customers = Table(
    "invoice_customers",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("address", Text, nullable=False),
    Column("tax_id", String(64), nullable=False),
)

# What tax is on what a tenant buys: each rate is in force until the next one is.
invoice_taxes = Table(
    "invoice_taxes",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("from_us", BigInteger, primary_key=True, autoincrement=False),
    Column("tax_name", String(40), nullable=False),
    Column("tax_percent", String(12), nullable=False),  # decimal
)

# What a close reads beside the rated lines.
Index("ix_adjustments_tenant", adjustments.c.tenant_id)
