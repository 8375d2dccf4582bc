"""An hour that is told to Stripe's meters may come to less than its rollup: test mode is not told.

Revision metered_hours, after verdicts.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "metered_hours"
down_revision = "verdicts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keep what the rollup said beside what was told, which may be nothing."""
    # What was told so far was what the rollup said.
    _remade(
        "INSERT INTO payment_metered "
        "SELECT tenant_id, measure, start_us, told, told FROM payment_metered_kept",
        sa.Column("rolled_up", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("told >= 0", name="ck_payment_metered_told_not_negative"),
    )


def downgrade() -> None:
    """Forget it, and the hours of which nothing was told."""
    op.execute("DELETE FROM payment_metered WHERE told = 0")
    _remade(
        "INSERT INTO payment_metered "
        "SELECT tenant_id, measure, start_us, told FROM payment_metered_kept",
        sa.CheckConstraint("told > 0", name="ck_payment_metered_told_something"),
    )


def _remade(fill: str, *more: sa.schema.SchemaItem) -> None:
    """Make the table anew: SQLite changes no constraint of one that stands."""
    op.execute("CREATE TABLE payment_metered_kept AS SELECT * FROM payment_metered")
    op.drop_table("payment_metered")
    op.create_table(
        "payment_metered",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("measure", sa.String(length=16), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("told", sa.BigInteger(), nullable=False),
        *more,
        sa.ForeignKeyConstraint(
            ["tenant_id", "measure"],
            ["payment_meters.tenant_id", "payment_meters.measure"],
            name="fk_payment_metered_tenant_id_measure",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "measure", "start_us", name="pk_payment_metered"),
    )
    op.execute(fill)
    op.drop_table("payment_metered_kept")
