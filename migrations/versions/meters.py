"""Usage that is told to Stripe's own meters.

Revision meters, after confidence.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "meters"
down_revision = "confidence"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
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


def downgrade() -> None:
    """Drop them."""
    op.drop_table("payment_metered")
    op.drop_table("payment_meters")
