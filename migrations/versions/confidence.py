"""Reviews at full depth and calibration: opinions, reviewers' accounts, caps, labels.

What was resolved before had one opinion, its reviewer's. What was paid to "the reviewers" together
stays in the account that they had in common.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from billing import review_triggers

revision = "confidence"
down_revision = "indexes"
branch_labels = None
depends_on = None

TABLES = (
    "review_opinions",
    "reviewer_keys",
    "review_payouts",
    "review_caps",
    "confidence_labels",
    "calibrations",
)  # in the order of their creation
FIRST_OPINIONS = """
INSERT INTO review_opinions
    (item_id, number, reviewer_id, claim_token, verdict, reasons, note, edited_output, given_at_us)
SELECT id, 1, resolved_by, claim_token, verdict, '[]', note, edited_output, resolved_at_us
FROM review_items WHERE state = 'resolved'
"""
OPINIONS = "UPDATE review_items SET opinions = 1 WHERE state = 'resolved'"
PAID_BY_TENANT = """
UPDATE review_items SET paid_by = 'tenant' WHERE EXISTS (
    SELECT 1 FROM transfers JOIN accounts ON accounts.id = transfers.debit_account_id
    WHERE transfers.id = review_items.request_id || '/review_fee'
        AND accounts.kind IN ('holds', 'tenant_credit', 'accrued')
)
"""


def upgrade() -> None:
    """Create the tables and columns, and say of former reviews what is known of them."""
    for table, column in _added():
        op.add_column(table, column)
    op.create_index("ix_review_items_tenant_queued", "review_items", ["tenant_id", "queued_at_us"])
    _create()
    for statement in (FIRST_OPINIONS, OPINIONS, PAID_BY_TENANT):
        op.execute(statement)
    connection = op.get_bind()
    for statement in review_triggers.create(connection.dialect.name):
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Drop what `upgrade` made. What is owed to reviewers stays in the ledger, in their accounts."""
    connection = op.get_bind()
    for statement in review_triggers.drop(connection.dialect.name):
        connection.exec_driver_sql(statement)
    for table in reversed(TABLES):
        op.drop_table(table)
    op.drop_index("ix_review_items_tenant_queued", "review_items")
    for table, column in reversed(_added()):
        op.drop_column(table, column.name)


def _added() -> list[tuple[str, sa.Column[Any]]]:
    items: tuple[sa.Column[Any], ...] = (
        sa.Column("paid_by", sa.String(8), nullable=False, server_default=sa.text("'operator'")),
        sa.Column("delivery", sa.String(8), nullable=False, server_default=sa.text("'now'")),
        sa.Column("opinions_wanted", sa.Integer(), nullable=False, server_default=sa.text("1")),
        sa.Column("opinions", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("reasons", sa.Text(), nullable=True),
        sa.Column("calibrated", sa.String(8), nullable=True),
        sa.Column("calibration", sa.String(64), nullable=True),
        sa.Column("inclusion_ppm", sa.Integer(), nullable=True),
        sa.Column("sampled", sa.Boolean(), nullable=False, server_default=sa.text("false")),
    )
    return [
        ("accounts", sa.Column("reviewer_id", sa.String(64), nullable=True)),
        *(("review_items", column) for column in items),
    ]


def _create() -> None:
    op.create_table(
        "review_opinions",
        sa.Column("item_id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("reviewer_id", sa.String(length=64), nullable=False),
        sa.Column("claim_token", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("reasons", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("edited_output", sa.Text(), nullable=True),
        sa.Column("given_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('approve', 'edit', 'reject')", name="ck_review_opinions_verdict"
        ),
        sa.ForeignKeyConstraint(
            ["item_id"], ["review_items.id"], name="fk_review_opinions_item_id"
        ),
        sa.PrimaryKeyConstraint("item_id", "number", name="pk_review_opinions"),
        sa.UniqueConstraint(
            "item_id", "reviewer_id", name="uq_review_opinions_item_id_reviewer_id"
        ),
    )
    op.create_index("ix_review_opinions_reviewer", "review_opinions", ["reviewer_id"])
    op.create_table(
        "reviewer_keys",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("reviewer_id", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_reviewer_keys"),
    )
    op.create_table(
        "review_payouts",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("reviewer_id", sa.String(length=64), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("reference", sa.String(length=100), nullable=False),
        sa.Column("paid_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_nano > 0", name="ck_review_payouts_positive"),
        sa.PrimaryKeyConstraint("id", name="pk_review_payouts"),
    )
    op.create_index("ix_review_payouts_reviewer", "review_payouts", ["reviewer_id"])
    op.create_table(
        "review_caps",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("cap_nano", sa.BigInteger(), nullable=True),
        sa.Column("changed_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("cap_nano IS NULL OR cap_nano >= 0", name="ck_review_caps_non_negative"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_review_caps_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_review_caps"),
    )
    _create_calibration()


def _create_calibration() -> None:
    op.create_table(
        "confidence_labels",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("unit_index", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("model_checksum", sa.String(length=100), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("geo_mean", sa.String(length=8), nullable=False),
        sa.Column("correct", sa.Boolean(), nullable=False),
        sa.Column("inclusion_ppm", sa.Integer(), nullable=False),
        sa.Column("sampled", sa.Boolean(), nullable=False),
        sa.Column("labelled_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "inclusion_ppm BETWEEN 1 AND 1000000", name="ck_confidence_labels_inclusion"
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name="fk_confidence_labels_request_id"
        ),
        sa.PrimaryKeyConstraint("request_id", "unit_index", name="pk_confidence_labels"),
    )
    op.create_index("ix_confidence_labels_model", "confidence_labels", ["model", "kind"])
    op.create_table(
        "calibrations",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("model_checksum", sa.String(length=100), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_calibrations"),
    )
    op.create_index("ix_calibrations_model_created", "calibrations", ["model", "created_at_us"])
