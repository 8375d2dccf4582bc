"""What a request was admitted with never changes: usage is added up by it.

Revision admissions, after summaries.
"""

from __future__ import annotations

from alembic import op

from billing import request_triggers

revision = "admissions"
down_revision = "summaries"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Refuse to change or remove a request, or what paid for it."""
    dialect = op.get_bind().dialect.name
    for statement in request_triggers.create(dialect, request_triggers.FIRST_TERMS):
        op.execute(statement)


def downgrade() -> None:
    """Allow it again."""
    for statement in request_triggers.drop(op.get_bind().dialect.name):
        op.execute(statement)
