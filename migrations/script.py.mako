"""${message}.

Revision ${up_revision}, after ${down_revision or "nothing"}.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the schema to this revision."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Change the schema back to the one before."""
    ${downgrades if downgrades else "pass"}
