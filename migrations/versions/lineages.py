"""Keys of one lineage share what their holder may do and is owed, reviewers' or tenants' alike.

Revision lineages, after metered_hours.
"""

from __future__ import annotations

import json
from collections import Counter

import sqlalchemy as sa
from alembic import op

revision = "lineages"
down_revision = "metered_hours"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keep the lineage of every key that was rotated: the audit log knows tenants' earlier ones."""
    op.create_table(
        "key_lineages",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("lineage_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_key_lineages"),
    )
    op.create_index("ix_key_lineages_lineage", "key_lineages", ["lineage_id", "position"])
    connection = op.get_bind()
    lineage = {
        row.key_id: row.reviewer_id
        for row in connection.execute(
            sa.text(
                "SELECT key_id, reviewer_id FROM reviewer_keys"
                " LEFT JOIN api_keys ON api_keys.id = reviewer_keys.key_id"
                " ORDER BY api_keys.created_at_us, key_id"
            )
        )
    }
    # Reviewers' accounts stay as they are: what is not in their table was never one person's.
    rotations = (
        "SELECT subject, detail FROM audit_log"
        " WHERE action = 'key.rotated' AND tenant_id IS NOT NULL ORDER BY seq"
    )
    for old, detail in connection.execute(sa.text(rotations)):
        successor = json.loads(detail).get("successor")
        if successor is not None:
            lineage.setdefault(successor, lineage.get(old, old))
    positions: Counter[str] = Counter()
    for key_id, lineage_id in lineage.items():
        positions[lineage_id] += 1
        connection.execute(
            sa.text("INSERT INTO key_lineages VALUES (:key_id, :lineage_id, :position)"),
            {"key_id": key_id, "lineage_id": lineage_id, "position": positions[lineage_id]},
        )
    op.drop_table("reviewer_keys")


def downgrade() -> None:
    """Keep the lineages of reviewers alone."""
    op.create_table(
        "reviewer_keys",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("reviewer_id", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_reviewer_keys"),
    )
    op.execute(
        "INSERT INTO reviewer_keys SELECT key_id, lineage_id FROM key_lineages"
        " WHERE key_id NOT IN (SELECT id FROM api_keys WHERE tenant_id IS NOT NULL)"
    )
    op.drop_table("key_lineages")
