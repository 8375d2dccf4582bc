"""Usage told to Stripe, and indexes for what reads them: the tenant's page, unrated usage.

Revision meters, after payments.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "meters"
down_revision = "payments"
branch_labels = None
depends_on = None

LINES = ["tenant_id", "event_time_us"]
SUMMARIES = ["tenant_id", "ended_at_us"]


def upgrade() -> None:
    """Create the tables, let two indexes cover what is added up, exchange one that none reads."""
    op.create_table(
        "payment_meters",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("measure", sa.String(length=16), nullable=False),
        sa.Column("event_name", sa.String(length=100), nullable=False),
        sa.Column("from_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "measure IN ('requests', 'input_tokens', 'output_tokens')",
            name="ck_payment_meters_measure",
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_payment_meters_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "measure", name="pk_payment_meters"),
    )
    op.create_table(
        "payment_metered",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("measure", sa.String(length=16), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("told", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("told > 0", name="ck_payment_metered_told_something"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "measure"],
            ["payment_meters.tenant_id", "payment_meters.measure"],
            name="fk_payment_metered_tenant_id_measure",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "measure", "start_us", name="pk_payment_metered"),
    )
    _exchange(
        "ix_rated_lines_tenant_time",
        "rated_lines",
        [*LINES, "component", "currency", "amount_nano"],
    )
    _exchange(
        "ix_request_summaries_tenant_ended",
        "request_summaries",
        [
            *SUMMARIES,
            "energy_class",
            "energy_uj",
            "input_tokens",
            "output_tokens",
            "complete_units",
            "fragment_units",
            "information_ubits",
            "geo_mean",
        ],
    )
    op.drop_index("ix_outside_waiting_tenant", table_name="outside_waiting")
    op.create_index(
        "ix_outside_waiting_unrated",
        "outside_waiting",
        ["seq"],
        unique=False,
        sqlite_where=sa.text("reason IS NOT NULL"),
        postgresql_where=sa.text("reason IS NOT NULL"),
    )


def downgrade() -> None:
    """Exchange them back."""
    op.drop_index("ix_outside_waiting_unrated", table_name="outside_waiting")
    op.create_index("ix_outside_waiting_tenant", "outside_waiting", ["tenant_id", "seq"])
    _exchange("ix_request_summaries_tenant_ended", "request_summaries", SUMMARIES)
    _exchange("ix_rated_lines_tenant_time", "rated_lines", LINES)
    op.drop_table("payment_metered")
    op.drop_table("payment_meters")


def _exchange(name: str, table: str, columns: list[str]) -> None:
    op.drop_index(name, table_name=table)
    op.create_index(name, table, columns)
