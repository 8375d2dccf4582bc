"""What became of each payment of an invoice, in the invoice and in credit; and indexes of turns.

Revision standings, after evidence.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.triggers import append_only, drop_append_only

revision = "standings"
down_revision = "evidence"
branch_labels = None
depends_on = None

# All of it stands in the ledger, under the payment's id, "payment/<invoice>/<cause>". What is
# debited from the operator's account came; the other way it was taken back. Payments of which
# nothing was noted, because all that they took back was lost, are noted, too.
_SIGNED = "CASE WHEN debited.tenant_id IS NULL THEN amount_nano ELSE -amount_nano END"
FILL = f"""
INSERT INTO invoice_payments
    (id, invoice_id, amount_minor, settled_minor, credited_nano, method, paid_at_us)
SELECT moved.id, invoices.id, CAST(moved.nano / invoices.minor_nano AS BIGINT),
    CAST(moved.settled_nano / invoices.minor_nano AS BIGINT), CAST(moved.credited_nano AS BIGINT),
    coalesce(noted.method, CASE WHEN moved.cash > 0 THEN 'manual' ELSE 'stripe' END),
    coalesce(noted.paid_at_us, moved.at_us)
FROM (
    SELECT transaction_id AS id, sum({_SIGNED}) AS nano, min(event_time_us) AS at_us,
        sum(CASE WHEN transfers.id = transaction_id || '/settled' THEN {_SIGNED} ELSE 0 END)
            AS settled_nano,
        sum(CASE WHEN transfers.id = transaction_id || '/surplus' THEN {_SIGNED} ELSE 0 END)
            AS credited_nano,
        sum(CASE WHEN debited.kind = 'cash' OR credited.kind = 'cash' THEN 1 ELSE 0 END) AS cash
    FROM transfers
    JOIN accounts debited ON debited.id = debit_account_id
    JOIN accounts credited ON credited.id = credit_account_id
    WHERE transaction_id LIKE 'payment/%'
    GROUP BY transaction_id
) moved
JOIN invoices ON invoices.id = substr(moved.id, 9, 36)
LEFT JOIN payments noted ON noted.id = moved.id
"""  # noqa: S608 - nothing in it comes from outside this module
KEEP = """
INSERT INTO invoice_payments (id, invoice_id, amount_minor, method, paid_at_us)
SELECT id, invoice_id, amount_minor, method, paid_at_us FROM payments
"""


def upgrade() -> None:
    """Read from the ledger what every payment so far settled and gave."""
    _replace(
        FILL,
        sa.Column("settled_minor", sa.BigInteger(), nullable=False),
        sa.Column("credited_nano", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_rollup_marks_tenant", "rollup_marks", ["tenant_id", "seq"])
    _index_uncounted("is_counted", "tenant_id", "start_us")


def downgrade() -> None:
    """Drop what `upgrade` added; the payments that it noted stay."""
    _index_uncounted("tenant_id", "start_us")
    op.drop_index("ix_rollup_marks_tenant", "rollup_marks")
    _replace(KEEP)


def _index_uncounted(*columns: str) -> None:
    op.drop_index("ix_charged_hours_uncounted", "charged_hours")
    op.create_index(
        "ix_charged_hours_uncounted",
        "charged_hours",
        columns,
        sqlite_where=sa.text("is_counted IS 0"),
        postgresql_where=sa.text("is_counted IS false"),
    )


def _replace(fill: str, *added: sa.Column[int]) -> None:
    """Make the table anew: its rows are never changed in place."""
    connection = op.get_bind()
    for statement in drop_append_only("invoice_payments", connection.dialect.name):
        connection.exec_driver_sql(statement)
    op.execute("CREATE TABLE payments AS SELECT * FROM invoice_payments")
    op.drop_table("invoice_payments")
    op.create_table(
        "invoice_payments",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("invoice_id", sa.String(64), nullable=False),
        sa.Column("amount_minor", sa.BigInteger(), nullable=False),
        *added,
        sa.Column("method", sa.String(16), nullable=False),
        sa.Column("paid_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_minor <> 0", name="ck_invoice_payments_not_zero"),
        sa.ForeignKeyConstraint(
            ["invoice_id"], ["invoices.id"], name="fk_invoice_payments_invoice_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_invoice_payments"),
    )
    op.create_index("ix_invoice_payments_invoice", "invoice_payments", ["invoice_id"])
    op.execute(fill)
    op.drop_table("payments")
    for statement in append_only("invoice_payments", connection.dialect.name):
        connection.exec_driver_sql(statement)
