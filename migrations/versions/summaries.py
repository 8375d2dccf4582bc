"""What a request came to never changes: its summary is what rating and every sum start from.

Revision summaries, after standings.
"""

from __future__ import annotations

from alembic import op

from billing.triggers import append_only, drop_append_only

revision = "summaries"
down_revision = "standings"
branch_labels = None
depends_on = None

TABLE = "request_summaries"


def upgrade() -> None:
    """Refuse to change or remove a summary."""
    for statement in append_only(TABLE, op.get_bind().dialect.name):
        op.execute(statement)


def downgrade() -> None:
    """Allow it again."""
    for statement in drop_append_only(TABLE, op.get_bind().dialect.name):
        op.execute(statement)
