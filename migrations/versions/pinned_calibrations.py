"""A request keeps the calibration that it was admitted with, through a crash too.

Revision pinned_calibrations, after taxed_from.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing import request_triggers
from billing.triggers import Refusal, allow, refuse

revision = "pinned_calibrations"
down_revision = "taxed_from"
branch_labels = None
depends_on = None

FINAL = """
UPDATE requests SET calibration = (
    SELECT {body} FROM request_summaries WHERE request_summaries.request_id = requests.id
)
WHERE EXISTS (
    SELECT 1 FROM request_summaries
    WHERE request_summaries.request_id = requests.id AND body LIKE '%"calibration":"%'
)
"""
# Of those that a crash left open, none has a summary yet: the newest before its admission.
LIVE = """
UPDATE requests SET calibration = (
    SELECT calibrations.id FROM calibrations
    WHERE calibrations.model = {model} AND calibrations.model_checksum = {checksum}
    AND calibrations.created_at_us <= requests.started_at_us
    ORDER BY calibrations.created_at_us DESC, calibrations.id DESC LIMIT 1
)
WHERE status IN ('admitted', 'running') AND engine IS NOT NULL
"""


def upgrade() -> None:
    """Note at every request what its summary says, or what was in force, and never change it."""
    op.add_column("requests", sa.Column("calibration", sa.String(length=64), nullable=True))
    _guard(request_triggers.FIRST_TERMS, None)
    op.execute(FINAL.format(body=_field("body", "calibration")))
    op.execute(LIVE.format(model=_field("engine", "model"), checksum=_field("engine", "checksum")))
    _guard(None, request_triggers.TERMS)


def downgrade() -> None:
    """Forget it: recovery takes what is in force."""
    _guard(request_triggers.TERMS, None)
    op.drop_column("requests", "calibration")
    _guard(None, request_triggers.FIRST_TERMS)


def _guard(former: Refusal | None, latter: Refusal | None) -> None:
    dialect = op.get_bind().dialect.name
    statements = [] if former is None else allow(dialect, [former])
    statements += [] if latter is None else refuse(dialect, [latter])
    for statement in statements:
        op.execute(statement)


def _field(document: str, name: str) -> str:
    """A field of a JSON text, in the database's words."""
    if op.get_bind().dialect.name == "sqlite":
        return f"json_extract({document}, '$.{name}')"
    return f"{document}::json ->> '{name}'"
