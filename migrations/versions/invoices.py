"""Invoices: closed periods, invoices and their lines, numbers, payments, credit notes and parties.

Revision invoices, after retention.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.invoices import triggers

revision = "invoices"
down_revision = "retention"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and indexes, then the triggers."""
    op.create_table(
        "invoice_issuer",
        sa.Column("id", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("tax_id", sa.String(length=64), nullable=False),
        sa.Column("series", sa.String(length=16), nullable=False),
        sa.Column("grace_us", sa.BigInteger(), nullable=False),
        sa.Column("due_days", sa.Integer(), nullable=False),
        sa.CheckConstraint("id = 'issuer'", name="ck_invoice_issuer_one"),
        sa.CheckConstraint(
            "grace_us >= 0 AND due_days >= 0", name="ck_invoice_issuer_not_negative"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_invoice_issuer"),
    )
    op.create_table(
        "invoice_numbers",
        sa.Column("series", sa.String(length=16), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("series", name="pk_invoice_numbers"),
    )
    op.create_table(
        "billing_periods",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("label", sa.String(length=8), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("end_us", sa.BigInteger(), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("late", sa.Integer(), nullable=False),
        sa.Column("late_billed", sa.Integer(), nullable=False),
        sa.Column("closing_at_us", sa.BigInteger(), nullable=False),
        sa.Column("closed_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("end_us > start_us", name="ck_billing_periods_half_open"),
        sa.CheckConstraint(
            "late_billed BETWEEN 0 AND late", name="ck_billing_periods_billed_what_came"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_billing_periods_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "label", name="pk_billing_periods"),
    )
    op.create_table(
        "invoice_customers",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("tax_id", sa.String(length=64), nullable=False),
        sa.Column("tax_name", sa.String(length=40), nullable=False),
        sa.Column("tax_percent", sa.String(length=12), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_invoice_customers_tenant_id"
        ),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_invoice_customers"),
    )
    op.create_table(
        "invoices",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("period", sa.String(length=8), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("minor_nano", sa.BigInteger(), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("end_us", sa.BigInteger(), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("number", sa.String(length=40), nullable=True),
        sa.Column("subtotal_minor", sa.BigInteger(), nullable=False),
        sa.Column("tax_minor", sa.BigInteger(), nullable=False),
        sa.Column("total_minor", sa.BigInteger(), nullable=False),
        sa.Column("credit_minor", sa.BigInteger(), nullable=False),
        sa.Column("due_minor", sa.BigInteger(), nullable=False),
        sa.Column("charges_nano", sa.BigInteger(), nullable=False),
        sa.Column("returned_nano", sa.BigInteger(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("customer", sa.Text(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("finalised_at_us", sa.BigInteger(), nullable=True),
        sa.Column("due_at_us", sa.BigInteger(), nullable=True),
        sa.Column("resolved_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(state = 'draft') = (finalised_at_us IS NULL)", name="ck_invoices_dated_when_final"
        ),
        sa.CheckConstraint(
            "(state = 'draft') = (number IS NULL)", name="ck_invoices_numbered_when_final"
        ),
        sa.CheckConstraint(
            "state IN ('draft', 'final', 'paid', 'void', 'uncollectible')", name="ck_invoices_state"
        ),
        sa.CheckConstraint("due_minor = total_minor - credit_minor", name="ck_invoices_due"),
        sa.CheckConstraint("due_minor >= 0", name="ck_invoices_due_not_negative"),
        sa.CheckConstraint("returned_nano >= 0", name="ck_invoices_returned_not_negative"),
        sa.CheckConstraint("total_minor = subtotal_minor + tax_minor", name="ck_invoices_total"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_invoices_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_invoices"),
        sa.UniqueConstraint("number", name="uq_invoices_number"),
    )
    op.create_index(
        "uq_invoices_once",
        "invoices",
        ["tenant_id", "period", "kind", "currency"],
        unique=True,
        sqlite_where=sa.text("state <> 'void'"),
        postgresql_where=sa.text("state <> 'void'"),
    )
    op.create_table(
        "credit_notes",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("invoice_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("reference", sa.String(length=64), nullable=False),
        sa.Column("number", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=False),
        sa.Column("net_minor", sa.BigInteger(), nullable=False),
        sa.Column("tax_minor", sa.BigInteger(), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("forgiven_minor", sa.BigInteger(), nullable=False),
        sa.Column("issued_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "amount_minor = net_minor + tax_minor AND amount_minor > 0",
            name="ck_credit_notes_amount",
        ),
        sa.CheckConstraint(
            "forgiven_minor BETWEEN 0 AND amount_minor", name="ck_credit_notes_forgiven"
        ),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name="fk_credit_notes_invoice_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_credit_notes_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_credit_notes"),
        sa.UniqueConstraint("invoice_id", "reference", name="uq_credit_notes_invoice_id_reference"),
        sa.UniqueConstraint("number", name="uq_credit_notes_number"),
    )
    op.create_table(
        "invoice_lines",
        sa.Column("invoice_id", sa.String(length=64), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("component", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.String(length=64), nullable=False),
        sa.Column("quantity", sa.String(length=60), nullable=False),
        sa.Column("unit", sa.String(length=24), nullable=False),
        sa.Column("unit_price", sa.String(length=40), nullable=True),
        sa.Column("tariff_version_id", sa.String(length=64), nullable=True),
        sa.Column("period", sa.String(length=8), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('usage', 'adjustment', 'period', 'tax', 'credit')",
            name="ck_invoice_lines_kind",
        ),
        sa.ForeignKeyConstraint(
            ["invoice_id"], ["invoices.id"], name="fk_invoice_lines_invoice_id"
        ),
        sa.ForeignKeyConstraint(
            ["tariff_version_id"], ["tariff_versions.id"], name="fk_invoice_lines_tariff_version_id"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_invoice_lines_tenant_id"),
        sa.PrimaryKeyConstraint("invoice_id", "line", name="pk_invoice_lines"),
    )
    op.create_index(
        "ix_invoice_lines_tenant_period", "invoice_lines", ["tenant_id", "period"], unique=False
    )
    op.create_table(
        "invoice_payments",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("invoice_id", sa.String(length=64), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("paid_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_minor <> 0", name="ck_invoice_payments_not_zero"),
        sa.ForeignKeyConstraint(
            ["invoice_id"], ["invoices.id"], name="fk_invoice_payments_invoice_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_invoice_payments"),
    )
    op.create_index("ix_invoice_payments_invoice", "invoice_payments", ["invoice_id"], unique=False)
    op.create_index("ix_adjustments_tenant", "adjustments", ["tenant_id"], unique=False)
    connection = op.get_bind()
    for statement in triggers.create(connection.dialect.name):
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Drop the triggers, the indexes and the tables, and with them all that they hold."""
    connection = op.get_bind()
    for statement in triggers.drop(connection.dialect.name):
        connection.exec_driver_sql(statement)
    op.drop_index("ix_adjustments_tenant", table_name="adjustments")
    op.drop_index("ix_invoice_payments_invoice", table_name="invoice_payments")
    op.drop_table("invoice_payments")
    op.drop_index("ix_invoice_lines_tenant_period", table_name="invoice_lines")
    op.drop_table("invoice_lines")
    op.drop_table("credit_notes")
    op.drop_index(
        "uq_invoices_once",
        table_name="invoices",
        sqlite_where=sa.text("state <> 'void'"),
        postgresql_where=sa.text("state <> 'void'"),
    )
    op.drop_table("invoices")
    op.drop_table("invoice_customers")
    op.drop_table("billing_periods")
    op.drop_table("invoice_numbers")
    op.drop_table("invoice_issuer")
