"""How long content is kept, what was erased, and blocks that were compacted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing import retention_triggers, triggers

revision = "retention"
down_revision = "webhooks"
branch_labels = None
depends_on = None

# SQLite only numbers rows by itself in a column declared INTEGER, which is 64 bits wide there.
SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
APPEND_ONLY = ("compactions", "erasures")


def upgrade() -> None:
    """Create the tables, and let compacted blocks go."""
    _create()
    connection = op.get_bind()
    dialect = connection.dialect.name
    for statement in retention_triggers.create(dialect):
        connection.exec_driver_sql(statement)
    for table in APPEND_ONLY:
        for statement in triggers.append_only(table, dialect):
            connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Drop the tables. What was erased stays so; its blocks are gaps from then on."""
    connection = op.get_bind()
    dialect = connection.dialect.name
    for statement in retention_triggers.drop(dialect):
        connection.exec_driver_sql(statement)
    for table in APPEND_ONLY:
        for statement in triggers.drop_append_only(table, dialect):
            connection.exec_driver_sql(statement)
    for table in (*APPEND_ONLY, "retention_policies"):
        op.drop_table(table)


def _create() -> None:
    op.create_table(
        "retention_policies",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("content_days", sa.Integer(), nullable=True),
        sa.Column("changed_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "content_days IS NULL OR content_days >= 0",
            name="ck_retention_policies_days_non_negative",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_retention_policies_tenant_id"
        ),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_retention_policies"),
    )
    op.create_table(
        "compactions",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("blocks", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("accepted_tokens", sa.Integer(), nullable=False),
        sa.Column("compacted_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name="fk_compactions_request_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_compactions_tenant_id"),
        sa.PrimaryKeyConstraint("request_id", name="pk_compactions"),
    )
    op.create_table(
        "erasures",
        sa.Column("seq", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.String(length=16), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("erased_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("reason IN ('asked', 'retention')", name="ck_erasures_reason"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_erasures_tenant_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_erasures"),
    )
    op.create_index("ix_erasures_tenant", "erasures", ["tenant_id"], unique=False)
