"""Payments: who pays through the provider, its outbox and objects, top-ups and webhooks.

Revision payments, after invoices.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.payments import triggers

revision = "payments"
down_revision = "invoices"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and indexes, then the triggers."""
    op.create_table(
        "payment_objects",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=100), nullable=False),
        sa.Column("provider_id", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", name="pk_payment_objects"),
        sa.UniqueConstraint("kind", "provider_id", name="uq_payment_objects_kind_provider_id"),
    )
    op.create_table(
        "payment_webhooks",
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("type", sa.String(length=100), nullable=False),
        sa.Column("object_id", sa.String(length=255), nullable=False),
        sa.Column("sent_at_us", sa.BigInteger(), nullable=False),
        sa.Column("received_at_us", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_payment_webhooks"),
    )
    op.create_table(
        "payment_accounts",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("email", sa.String(length=200), nullable=False),
        sa.Column("past_due_since_us", sa.BigInteger(), nullable=True),
        sa.Column("recharge_below_nano", sa.BigInteger(), nullable=True),
        sa.Column("recharge_minor", sa.BigInteger(), nullable=True),
        sa.Column("recharge_failed", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "(recharge_below_nano IS NULL) = (recharge_minor IS NULL)",
            name="ck_payment_accounts_recharge_whole",
        ),
        sa.CheckConstraint("recharge_minor > 0", name="ck_payment_accounts_recharge_positive"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_payment_accounts_tenant_id"
        ),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_payment_accounts"),
    )
    op.create_table(
        "payment_outbox",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=100), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("first_tried_at_us", sa.BigInteger(), nullable=True),
        sa.Column("next_try_at_us", sa.BigInteger(), nullable=False),
        sa.Column("provider_id", sa.String(length=255), nullable=True),
        sa.Column("error", sa.String(length=500), nullable=True),
        sa.CheckConstraint(
            "(state = 'sent') = (provider_id IS NOT NULL)", name="ck_payment_outbox_sent_is_known"
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'sent', 'refused')", name="ck_payment_outbox_state"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_payment_outbox_tenant_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_payment_outbox"),
        sa.UniqueConstraint("action", "subject", name="uq_payment_outbox_action_subject"),
    )
    op.create_index(
        "ix_payment_outbox_queue", "payment_outbox", ["state", "tenant_id"], unique=False
    )
    op.create_table(
        "top_ups",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("reference", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        sa.Column("minor_nano", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('checkout', 'recharge')", name="ck_top_ups_kind"),
        sa.CheckConstraint("state IN ('open', 'paid', 'failed')", name="ck_top_ups_state"),
        sa.CheckConstraint("amount_minor > 0", name="ck_top_ups_amount_positive"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_top_ups_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_top_ups"),
        sa.UniqueConstraint("tenant_id", "reference", name="uq_top_ups_tenant_id_reference"),
    )
    connection = op.get_bind()
    for statement in triggers.create(connection.dialect.name):
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Drop the triggers, the indexes and the tables, and with them all that they hold."""
    connection = op.get_bind()
    for statement in triggers.drop(connection.dialect.name):
        connection.exec_driver_sql(statement)
    op.drop_table("top_ups")
    op.drop_index("ix_payment_outbox_queue", table_name="payment_outbox")
    op.drop_table("payment_outbox")
    op.drop_table("payment_accounts")
    op.drop_table("payment_webhooks")
    op.drop_table("payment_objects")
