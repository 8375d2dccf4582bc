"""The engine that a request was admitted for: what a receipt may say after a restart.

Revision engines, after meters.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "engines"
down_revision = "meters"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of earlier requests it is not recorded."""
    op.add_column("requests", sa.Column("engine", sa.Text()))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("requests", "engine")
