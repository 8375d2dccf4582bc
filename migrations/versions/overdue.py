"""Charges added up by the hour, what happens when an invoice is not paid, and salts of content.

Revision overdue, after engines.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "overdue"
down_revision = "engines"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables, with every hour that holds a line as one to be counted; add the terms."""
    op.create_table(
        "charged_hours",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("is_counted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_charged_hours_tenant_id")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "start_us", name=op.f("pk_charged_hours")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_charged_hours_uncounted",
        "charged_hours",
        ["tenant_id", "start_us"],
        unique=False,
        sqlite_where=sa.text("is_counted IS 0"),
        postgresql_where=sa.text("is_counted IS false"),
    )
    op.create_table(
        "hour_charges",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("tariff_version_id", sa.String(64), nullable=False),
        sa.Column("component", sa.String(32), nullable=False),
        sa.Column("detail", sa.String(64), nullable=False),
        sa.Column("unit", sa.String(24), nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("quantity_millionths", sa.BigInteger(), nullable=False),
        sa.Column("unit_price_low", sa.String(40), nullable=False),
        sa.Column("unit_price_high", sa.String(40), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "start_us"],
            ["charged_hours.tenant_id", "charged_hours.start_us"],
            name=op.f("fk_hour_charges_tenant_id_start_us"),
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id",
            "start_us",
            "tariff_version_id",
            "component",
            "detail",
            "unit",
            "currency",
            name=op.f("pk_hour_charges"),
        ),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO charged_hours (tenant_id, start_us, is_counted)"
        " SELECT DISTINCT tenant_id, event_time_us - event_time_us % 3600000000, false"
        " FROM rated_lines"
    )
    op.add_column(
        "invoice_issuer",
        sa.Column("reminder_days", sa.String(60), nullable=False, server_default="1,7,14"),
    )
    op.add_column(
        "invoice_issuer", sa.Column("pause_days", sa.Integer(), server_default=sa.text("14"))
    )
    op.add_column("credit_terms", sa.Column("paused_at_us", sa.BigInteger()))
    op.add_column("requests", sa.Column("content_salt", sa.String(64)))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("requests", "content_salt")
    op.drop_column("credit_terms", "paused_at_us")
    op.drop_column("invoice_issuer", "pause_days")
    op.drop_column("invoice_issuer", "reminder_days")
    op.drop_table("hour_charges")
    op.drop_index("ix_charged_hours_uncounted", table_name="charged_hours")
    op.drop_table("charged_hours")
