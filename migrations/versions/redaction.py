"""Whether reviewers see a tenant's texts with what points at a person hidden.

Revision redaction, after erasure.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "redaction"
down_revision = "erasure"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the setting; as before, everything that can be told is hidden."""
    op.add_column(
        "tenants",
        sa.Column("review_redaction", sa.Boolean(), nullable=False, server_default=sa.text("true")),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_column("tenants", "review_redaction")
