"""Tables of charges by the hour: a projection of lines and receipts, which can be made anew.

They belong to `billing.tables.metadata`. Hours are UTC's.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from billing.tables import metadata
from metering.tables import Id, tenants

# One row for every hour of a tenant that holds a rated line; while it is not counted, what is
# stored of it below is not to be read.
charged_hours = Table(
    "charged_hours",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("start_us", BigInteger, primary_key=True),
    Column("is_counted", Boolean, nullable=False),
    sqlite_with_rowid=False,
)
Index(
    "ix_charged_hours_uncounted",
    charged_hours.c.is_counted,  # without it SQLite would rather read the key, of all hours
    charged_hours.c.tenant_id,
    charged_hours.c.start_us,
    sqlite_where=charged_hours.c.is_counted.is_(False),
    postgresql_where=charged_hours.c.is_counted.is_(False),
)

hour_charges = Table(
    "hour_charges",
    metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("start_us", BigInteger, primary_key=True),
    Column("tariff_version_id", Id, primary_key=True),
    Column("component", String(32), primary_key=True),
    Column("detail", String(64), primary_key=True),
    Column("unit", String(24), primary_key=True),
    Column("currency", String(3), primary_key=True),
    Column("quantity_millionths", BigInteger, nullable=False),
    Column("unit_price_low", String(40), nullable=False),  # as text: equal, or no single price
    Column("unit_price_high", String(40), nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    ForeignKeyConstraint(
        ["tenant_id", "start_us"], [charged_hours.c.tenant_id, charged_hours.c.start_us]
    ),
    sqlite_with_rowid=False,
)

# What the requests of an hour came to, those that carry the same in one row.
hour_spending = Table(
    "hour_spending",
    metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("start_us", BigInteger, primary_key=True),
    Column("place", Integer, primary_key=True),  # numbers the rows of an hour
    Column("key_id", Id, nullable=False),
    Column("project_id", Id),
    Column("end_user", String(200)),
    Column("model", String(200), nullable=False),
    Column("tags", Text),  # JSON object, as on the request
    Column("currency", String(3), nullable=False),
    Column("requests", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("charged_nano", BigInteger, nullable=False),
    ForeignKeyConstraint(
        ["tenant_id", "start_us"], [charged_hours.c.tenant_id, charged_hours.c.start_us]
    ),
    sqlite_with_rowid=False,
)
