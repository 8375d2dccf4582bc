"""Reported usage that waits for a price is found by itself; what merely waits is not indexed.

Revision unrated, after payments.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "unrated"
down_revision = "payments"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Exchange the index that nothing reads for one of what could not be rated."""
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
    op.create_index(
        "ix_outside_waiting_tenant", "outside_waiting", ["tenant_id", "seq"], unique=False
    )
