"""Grants, postpaid terms, budgets, limits and projects, and what pays for each request.

What pending holds and settled requests were paid from before is the tenants' plain credit: it was
all there was.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing import credit_triggers

revision = "spending"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = (
    "grants",
    "fundings",
    "credit_terms",
    "budgets",
    "budget_windows",
    "budget_reservations",
    "notices",
    "projects",
    "limits",
)  # in the order of their creation
PAID_FROM_CREDIT = """
INSERT INTO fundings (request_id, source, position, amount_nano)
SELECT holds.request_id, 'credit', 0,
    CASE holds.state WHEN 'pending' THEN holds.amount_nano ELSE COALESCE(moved.paid_nano, 0) END
FROM holds LEFT JOIN (
    SELECT transfers.request_id AS request_id, SUM(
        CASE
            WHEN debited.kind = 'tenant_credit' THEN transfers.amount_nano
            WHEN credited.kind = 'tenant_credit' THEN -transfers.amount_nano
            ELSE 0
        END
    ) AS paid_nano
    FROM transfers
    JOIN accounts AS debited ON debited.id = transfers.debit_account_id
    JOIN accounts AS credited ON credited.id = transfers.credit_account_id
    GROUP BY transfers.request_id
) AS moved ON moved.request_id = holds.request_id
"""


def upgrade() -> None:
    """Create the tables and triggers, add the projects' columns, and say what paid until now."""
    _create()
    op.add_column("requests", sa.Column("project_id", sa.String(length=64), nullable=True))
    op.add_column("api_keys", sa.Column("project_id", sa.String(length=64), nullable=True))
    op.execute(PAID_FROM_CREDIT)
    connection = op.get_bind()
    for statement in credit_triggers.create(connection.dialect.name):
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Drop what `upgrade` made. Promotional credit and what is owed stay in the ledger."""
    connection = op.get_bind()
    for statement in credit_triggers.drop(connection.dialect.name):
        connection.exec_driver_sql(statement)
    op.drop_column("api_keys", "project_id")
    op.drop_column("requests", "project_id")
    for table in reversed(TABLES):
        op.drop_table(table)


def _create() -> None:
    op.create_table(
        "grants",
        sa.Column("id", sa.String(length=160), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("remaining_nano", sa.BigInteger(), nullable=False),
        sa.Column("effective_from_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('paid', 'promotional')", name="ck_grants_kind"),
        sa.CheckConstraint("amount_nano > 0", name="ck_grants_positive"),
        sa.CheckConstraint(
            "expires_at_us IS NULL OR expires_at_us > effective_from_us", name="ck_grants_half_open"
        ),
        sa.CheckConstraint(
            "remaining_nano BETWEEN 0 AND amount_nano", name="ck_grants_spends_at_most_itself"
        ),
        sa.ForeignKeyConstraint(["id"], ["transfers.id"], name="fk_grants_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_grants_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_grants"),
    )
    op.create_index("ix_grants_tenant", "grants", ["tenant_id", "expires_at_us"], unique=False)
    op.create_table(
        "fundings",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=160), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_nano >= 0", name="ck_fundings_non_negative"),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name="fk_fundings_request_id"),
        sa.PrimaryKeyConstraint("request_id", "source", name="pk_fundings"),
    )
    op.create_index("ix_fundings_source", "fundings", ["source"], unique=False)
    op.create_table(
        "credit_terms",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("receivable_limit_nano", sa.BigInteger(), nullable=False),
        sa.Column("alert_below_nano", sa.BigInteger(), nullable=True),
        sa.Column("alerted_at_us", sa.BigInteger(), nullable=True),
        sa.Column("changed_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("receivable_limit_nano >= 0", name="ck_credit_terms_limit_non_negative"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_credit_terms_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_credit_terms"),
    )
    op.create_table(
        "budgets",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=8), nullable=False),
        sa.Column("scope_id", sa.String(length=64), nullable=True),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("period", sa.String(length=8), nullable=False),
        sa.Column("limit_nano", sa.BigInteger(), nullable=False),
        sa.Column("alerts", sa.Text(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("closed_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(scope = 'tenant') = (scope_id IS NULL)", name="ck_budgets_scope_names_one"
        ),
        sa.CheckConstraint("kind IN ('hard', 'soft')", name="ck_budgets_kind"),
        sa.CheckConstraint("period IN ('day', 'week', 'month', 'ever')", name="ck_budgets_period"),
        sa.CheckConstraint("scope IN ('tenant', 'key', 'project')", name="ck_budgets_scope"),
        sa.CheckConstraint("limit_nano >= 0", name="ck_budgets_limit_non_negative"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_budgets_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_budgets"),
    )
    op.create_index("ix_budgets_tenant", "budgets", ["tenant_id"], unique=False)
    op.create_table(
        "budget_windows",
        sa.Column("budget_id", sa.String(length=64), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("end_us", sa.BigInteger(), nullable=True),
        sa.Column("reserved_nano", sa.BigInteger(), nullable=False),
        sa.Column("spent_nano", sa.BigInteger(), nullable=False),
        sa.Column("alerted_pct", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "reserved_nano >= 0 AND spent_nano >= 0", name="ck_budget_windows_non_negative"
        ),
        sa.ForeignKeyConstraint(["budget_id"], ["budgets.id"], name="fk_budget_windows_budget_id"),
        sa.PrimaryKeyConstraint("budget_id", "start_us", name="pk_budget_windows"),
    )
    op.create_table(
        "budget_reservations",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("budget_id", sa.String(length=64), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("reserved_nano", sa.BigInteger(), nullable=False),
        sa.Column("spent_nano", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "reserved_nano >= 0 AND spent_nano >= 0", name="ck_budget_reservations_non_negative"
        ),
        sa.ForeignKeyConstraint(
            ["budget_id"], ["budgets.id"], name="fk_budget_reservations_budget_id"
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name="fk_budget_reservations_request_id"
        ),
        sa.PrimaryKeyConstraint("request_id", "budget_id", name="pk_budget_reservations"),
    )
    op.create_index(
        "ix_budget_reservations_budget", "budget_reservations", ["budget_id"], unique=False
    )
    op.create_table(
        "notices",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("dispatched_at_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_notices_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_notices"),
    )
    op.create_index(
        "ix_notices_waiting",
        "notices",
        ["created_at_us"],
        unique=False,
        sqlite_where=sa.text("dispatched_at_us IS NULL"),
        postgresql_where=sa.text("dispatched_at_us IS NULL"),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("archived_at_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_projects_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_projects_tenant_id_name"),
    )
    op.create_table(
        "limits",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("joules_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("concurrency", sa.Integer(), nullable=True),
        sa.Column("changed_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(requests_per_minute IS NULL OR requests_per_minute > 0) AND (tokens_per_minute IS NULL OR tokens_per_minute > 0) AND (joules_per_minute IS NULL OR joules_per_minute > 0) AND (concurrency IS NULL OR concurrency > 0)",
            name="ck_limits_positive",
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_limits_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "subject", name="pk_limits"),
    )
