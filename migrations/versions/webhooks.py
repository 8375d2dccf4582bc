"""Webhook endpoints, and what is delivered to each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "webhooks"
down_revision = "ingestion"
branch_labels = None
depends_on = None

# SQLite only numbers rows by itself in a column declared INTEGER, which is 64 bits wide there.
SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("types", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(length=100), nullable=False),
        sa.Column("previous_secret", sa.String(length=100), nullable=True),
        sa.Column("previous_until_us", sa.BigInteger(), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at_us", sa.BigInteger(), nullable=True),
        sa.Column("disabled_reason", sa.String(length=200), nullable=True),
        sa.CheckConstraint(
            "(previous_secret IS NULL) = (previous_until_us IS NULL)",
            name="ck_webhook_endpoints_overlap",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_webhook_endpoints_tenant_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_endpoints"),
    )
    op.create_index("ix_webhook_endpoints_tenant", "webhook_endpoints", ["tenant_id"], unique=False)
    op.create_table(
        "webhook_deliveries",
        sa.Column("seq", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("notice_id", sa.String(length=80), nullable=False),
        sa.Column("endpoint_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at_us", sa.BigInteger(), nullable=False),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.String(length=200), nullable=True),
        sa.Column("delivered_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "state IN ('waiting', 'delivered', 'failed')", name="ck_webhook_deliveries_state"
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["webhook_endpoints.id"], name="fk_webhook_deliveries_endpoint_id"
        ),
        sa.ForeignKeyConstraint(
            ["notice_id"], ["notices.id"], name="fk_webhook_deliveries_notice_id"
        ),
        sa.PrimaryKeyConstraint("seq", name="pk_webhook_deliveries"),
        sa.UniqueConstraint(
            "notice_id", "endpoint_id", name="uq_webhook_deliveries_notice_id_endpoint_id"
        ),
    )
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["next_at_us"],
        unique=False,
        sqlite_where=sa.text("state = 'waiting'"),
        postgresql_where=sa.text("state = 'waiting'"),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("webhook_deliveries")
    op.drop_table("webhook_endpoints")
