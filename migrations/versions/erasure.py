"""What erasure did not reach: parameters of what was erased, and hashes of bodies beside keys; and
what was spent in an hour, by what requests carry; and rows that the payment provider refused and
nobody wants told any more.

Revision erasure, after overdue.
"""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "erasure"
down_revision = "overdue"
branch_labels = None
depends_on = None

BATCH = 1000


def upgrade() -> None:
    """Salt the hashes; take from erased requests the parameters that may tell content; add the table,
    with every hour as one to be counted.
    """
    op.create_table(
        "hour_spending",
        sa.Column("tenant_id", sa.String(64), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("project_id", sa.String(64)),
        sa.Column("end_user", sa.String(200)),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("tags", sa.Text()),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("charged_nano", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id", "start_us"],
            ["charged_hours.tenant_id", "charged_hours.start_us"],
            name=op.f("fk_hour_spending_tenant_id_start_us"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", "start_us", "place", name=op.f("pk_hour_spending")),
        sqlite_with_rowid=False,
    )
    op.add_column("payment_outbox", sa.Column("dropped_at_us", sa.BigInteger()))
    op.execute("UPDATE charged_hours SET is_counted = false")
    op.execute("ALTER TABLE idempotency_keys RENAME COLUMN body_sha256 TO salted_sha256")
    _salt_bodies()
    _clear_parameters()


def downgrade() -> None:
    """Drop the table, and name the column as before. A body sent again matches no more: it is refused, not charged."""
    op.execute("ALTER TABLE idempotency_keys RENAME COLUMN salted_sha256 TO body_sha256")
    op.drop_column("payment_outbox", "dropped_at_us")
    op.drop_table("hour_spending")


def _salt_bodies() -> None:
    connection = op.get_bind()
    page = sa.text(
        "SELECT k.tenant_id, k.route, k.key, k.salted_sha256, r.content_salt"
        " FROM idempotency_keys AS k JOIN requests AS r ON r.id = k.request_id"
        " WHERE (k.tenant_id, k.route, k.key) > (:tenant_id, :route, :key)"
        " ORDER BY k.tenant_id, k.route, k.key LIMIT :limit"
    )
    store = sa.text(
        "UPDATE idempotency_keys SET salted_sha256 = :hash"
        " WHERE tenant_id = :tenant_id AND route = :route AND key = :key"
    )
    last = {"tenant_id": "", "route": "", "key": ""}
    while rows := connection.execute(page, {**last, "limit": BATCH}).all():
        salted = [
            {
                "tenant_id": row.tenant_id,
                "route": row.route,
                "key": row.key,
                "hash": hashlib.sha256(
                    bytes.fromhex(row.content_salt or "") + row.salted_sha256.encode()
                ).hexdigest(),
            }
            for row in rows
        ]
        connection.execute(store, salted)
        last = {name: salted[-1][name] for name in last}


def _clear_parameters() -> None:
    connection = op.get_bind()
    page = sa.text(
        "SELECT id, parameters FROM requests WHERE id > :id AND prompt IS NULL AND output IS NULL"
        " AND status NOT IN ('admitted', 'running') AND route <> 'outside'"
        " ORDER BY id LIMIT :limit"
    )
    store = sa.text("UPDATE requests SET parameters = :parameters WHERE id = :id")
    last = ""
    while rows := connection.execute(page, {"id": last, "limit": BATCH}).all():
        cleared = [{"id": row.id, "parameters": _without_content(row.parameters)} for row in rows]
        connection.execute(store, cleared)
        last = rows[-1].id


def _without_content(text: str) -> str:
    return json.dumps(
        {
            name: value
            for name, value in json.loads(text).items()
            if name == "green" or not value or isinstance(value, bool | int | float)
        }
    )
