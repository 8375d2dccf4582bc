"""Who judged a labelled text, and what errs together with it; and the replica that ran a request.

Revision evidence, after redaction.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "evidence"
down_revision = "redaction"
branch_labels = None
depends_on = None

REVIEWERS = """
INSERT INTO confidence_labels
    (request_id, unit_index, model, model_checksum, kind, geo_mean, correct, inclusion_ppm,
    sampled, labelled_at_us, judge)
SELECT request_id, unit_index, model, model_checksum, kind, geo_mean, correct, inclusion_ppm,
    sampled, labelled_at_us, 'reviewers'
FROM labels
"""
WITHOUT_JUDGES = """
INSERT INTO confidence_labels
    (request_id, unit_index, model, model_checksum, kind, geo_mean, correct, inclusion_ppm,
    sampled, labelled_at_us)
SELECT request_id, unit_index, model, model_checksum, kind, geo_mean, correct, inclusion_ppm,
    sampled, labelled_at_us
FROM labels WHERE judge = 'reviewers'
"""


def upgrade() -> None:
    """Every label so far is a reviewer's. Which replica ran earlier requests is not recorded."""
    _replace(
        REVIEWERS,
        sa.Column("judge", sa.String(100), nullable=False),
        sa.Column("cluster", sa.String(64)),
        key=("request_id", "unit_index", "judge"),
    )
    op.add_column("requests", sa.Column("replica", sa.String(40)))
    is_recorded = sa.text("replica IS NOT NULL")
    op.create_index(
        "ix_requests_replica",
        "requests",
        ["replica", "id"],
        sqlite_where=is_recorded,
        postgresql_where=is_recorded,
    )


def downgrade() -> None:
    """Drop what `upgrade` added; of labels, the reviewers' alone are kept."""
    op.drop_index("ix_requests_replica", "requests")
    op.drop_column("requests", "replica")
    _replace(
        WITHOUT_JUDGES,
        key=("request_id", "unit_index"),
    )


def _replace(fill: str, *added: sa.Column[str], key: tuple[str, ...]) -> None:
    """Make the table anew: SQLite changes no primary key in place."""
    op.execute("CREATE TABLE labels AS SELECT * FROM confidence_labels")
    op.drop_table("confidence_labels")
    op.create_table(
        "confidence_labels",
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("unit_index", sa.Integer(), nullable=False),
        *added[:1],
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("model_checksum", sa.String(100)),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("geo_mean", sa.String(8), nullable=False),
        sa.Column("correct", sa.Boolean(), nullable=False),
        sa.Column("inclusion_ppm", sa.Integer(), nullable=False),
        sa.Column("sampled", sa.Boolean(), nullable=False),
        sa.Column("labelled_at_us", sa.BigInteger(), nullable=False),
        *added[1:],
        sa.CheckConstraint(
            "inclusion_ppm BETWEEN 1 AND 1000000", name="ck_confidence_labels_inclusion"
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name="fk_confidence_labels_request_id"
        ),
        sa.PrimaryKeyConstraint(*key, name="pk_confidence_labels"),
    )
    op.create_index("ix_confidence_labels_model", "confidence_labels", ["model", "kind"])
    op.execute(fill)
    op.drop_table("labels")
