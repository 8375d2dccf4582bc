"""What is guarded row by row is neither replaced nor emptied by one statement either.

Revision kept_whole, after pinned_calibrations.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing import kept_triggers

revision = "kept_whole"
down_revision = "pinned_calibrations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Refuse OR REPLACE on SQLite and TRUNCATE on PostgreSQL, of every guarded table."""
    op.create_table(
        "replacements",
        sa.Column("replaced", sa.Integer(), server_default=sa.text("1"), nullable=False),
    )
    for statement in kept_triggers.create(op.get_bind()):
        op.execute(statement)


def downgrade() -> None:
    """Allow it again."""
    for statement in kept_triggers.drop(op.get_bind().dialect.name):
        op.execute(statement)
    op.drop_table("replacements")
