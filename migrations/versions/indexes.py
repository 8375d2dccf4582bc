"""Indexes made for what reads them: the tenant's page, and what could not be rated.

Revision indexes, after payments.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "indexes"
down_revision = "payments"
branch_labels = None
depends_on = None

LINES = ["tenant_id", "event_time_us"]
SUMMARIES = ["tenant_id", "ended_at_us"]


def upgrade() -> None:
    """Let two indexes cover what is added up, and exchange one that nothing reads."""
    _exchange(
        "ix_rated_lines_tenant_time",
        "rated_lines",
        [*LINES, "component", "currency", "amount_nano"],
    )
    _exchange(
        "ix_request_summaries_tenant_ended",
        "request_summaries",
        [
            *SUMMARIES,
            "energy_class",
            "energy_uj",
            "input_tokens",
            "output_tokens",
            "complete_units",
            "fragment_units",
            "information_ubits",
            "geo_mean",
        ],
    )
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
    op.create_index("ix_outside_waiting_tenant", "outside_waiting", ["tenant_id", "seq"])
    _exchange("ix_request_summaries_tenant_ended", "request_summaries", SUMMARIES)
    _exchange("ix_rated_lines_tenant_time", "rated_lines", LINES)


def _exchange(name: str, table: str, columns: list[str]) -> None:
    op.drop_index(name, table_name=table)
    op.create_index(name, table, columns)
