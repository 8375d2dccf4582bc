"""Usage that other engines report: keys, ids, detail by month, what waits, and rollups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing import triggers

revision = "ingestion"
down_revision = "spending"
branch_labels = None
depends_on = None

# SQLite only numbers rows by itself in a column declared INTEGER, which is 64 bits wide there.
SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLES = (
    "metering_keys",
    "metering_key_tenants",
    "event_ids",
    "outside_usage",
    "outside_waiting",
    "usage_rollups",
    "rollup_marks",
)  # in the order of their creation


def upgrade() -> None:
    """Create the tables, and make what was accepted unchangeable."""
    _create()
    connection = op.get_bind()
    for statement in triggers.append_only("event_ids", connection.dialect.name):
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Drop what `upgrade` made."""
    connection = op.get_bind()
    for statement in triggers.drop_append_only("event_ids", connection.dialect.name):
        connection.exec_driver_sql(statement)
    for table in reversed(TABLES):
        op.drop_table(table)


def _create() -> None:
    op.create_table(
        "metering_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("source", sa.String(length=100), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("last_four", sa.String(length=4), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_metering_keys"),
        sa.UniqueConstraint("secret_sha256", name="uq_metering_keys_secret_sha256"),
    )
    op.create_table(
        "metering_key_tenants",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["metering_keys.id"], name="fk_metering_key_tenants_key_id"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_metering_key_tenants_tenant_id"
        ),
        sa.PrimaryKeyConstraint("key_id", "tenant_id", name="pk_metering_key_tenants"),
    )
    op.create_table(
        "event_ids",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=100), nullable=False),
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("ingested_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_event_ids_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "source", "id", name="pk_event_ids"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "outside_usage",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=100), nullable=False),
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("event_time_us", sa.BigInteger(), nullable=False),
        sa.Column("ingested_at_us", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant_id", "source", "id", "event_time_us", name="pk_outside_usage"
        ),
        postgresql_partition_by="RANGE (event_time_us)",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "outside_waiting",
        sa.Column("seq", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=100), nullable=False),
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("event_time_us", sa.BigInteger(), nullable=False),
        sa.Column("ingested_at_us", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=200), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_outside_waiting"),
    )
    op.create_index(
        "ix_outside_waiting_tenant", "outside_waiting", ["tenant_id", "seq"], unique=False
    )
    op.create_table(
        "usage_rollups",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("width", sa.String(length=8), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("energy_class", sa.String(length=16), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("energy_uj", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(energy_class = 'unavailable') = (energy_uj IS NULL)",
            name="ck_usage_rollups_energy_null_not_zero",
        ),
        sa.CheckConstraint("width IN ('minute', 'hour', 'day')", name="ck_usage_rollups_width"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_usage_rollups_tenant_id"),
        sa.PrimaryKeyConstraint(
            "tenant_id", "width", "start_us", "model", "energy_class", name="pk_usage_rollups"
        ),
    )
    op.create_table(
        "rollup_marks",
        sa.Column("seq", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("minute_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_rollup_marks"),
    )
