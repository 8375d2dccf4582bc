"""A verdict never changes, nor what was learnt from it, nor where a meter's energy went.

Revision verdicts, after admissions.
"""

from __future__ import annotations

from alembic import op

from billing import verdict_triggers
from billing.triggers import append_only, drop_append_only

revision = "verdicts"
down_revision = "admissions"
branch_labels = None
depends_on = None

TABLES = ("confidence_labels", "meter_windows")


def upgrade() -> None:
    """Refuse to change or remove a review that has ended, an opinion, a label, a meter's window."""
    dialect = op.get_bind().dialect.name
    for statement in verdict_triggers.create(dialect):
        op.execute(statement)
    for table in TABLES:
        for statement in append_only(table, dialect):
            op.execute(statement)


def downgrade() -> None:
    """Allow it again."""
    dialect = op.get_bind().dialect.name
    for table in TABLES:
        for statement in drop_append_only(table, dialect):
            op.execute(statement)
    for statement in verdict_triggers.drop(dialect):
        op.execute(statement)
