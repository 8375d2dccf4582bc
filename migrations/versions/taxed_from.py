"""A tenant's tax has a day from which it is in force: a month is taxed by the rate of its own time.

Revision taxed_from, after lineages.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "taxed_from"
down_revision = "lineages"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keep each tenant's tax by when it is in force: what was set, from ever."""
    op.create_table(
        "invoice_taxes",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("from_us", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tax_name", sa.String(length=40), nullable=False),
        sa.Column("tax_percent", sa.String(length=12), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_invoice_taxes_tenant_id")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "from_us", name=op.f("pk_invoice_taxes")),
    )
    op.execute(
        "INSERT INTO invoice_taxes (tenant_id, from_us, tax_name, tax_percent)"
        " SELECT tenant_id, 0, tax_name, tax_percent FROM invoice_customers"
    )
    op.drop_column("invoice_customers", "tax_name")
    op.drop_column("invoice_customers", "tax_percent")


def downgrade() -> None:
    """Keep only the tax that was set last."""
    op.execute("CREATE TABLE invoice_customers_kept AS SELECT * FROM invoice_customers")
    op.drop_table("invoice_customers")
    op.create_table(
        "invoice_customers",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("tax_id", sa.String(length=64), nullable=False),
        sa.Column("tax_name", sa.String(length=40), nullable=False),
        sa.Column("tax_percent", sa.String(length=12), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_invoice_customers_tenant_id"
        ),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_invoice_customers"),
    )
    op.execute(
        "INSERT INTO invoice_customers (tenant_id, name, address, tax_id, tax_name, tax_percent)"
        " SELECT kept.tenant_id, kept.name, kept.address, kept.tax_id, tax.tax_name,"
        " tax.tax_percent FROM invoice_customers_kept AS kept"
        " JOIN invoice_taxes AS tax ON tax.tenant_id = kept.tenant_id"
        " WHERE tax.from_us = (SELECT max(from_us) FROM invoice_taxes"
        " WHERE tenant_id = kept.tenant_id)"
    )
    op.drop_table("invoice_customers_kept")
    op.drop_table("invoice_taxes")
