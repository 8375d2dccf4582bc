"""Tables of webhook endpoints, and of what is delivered to each.

They belong to `api.tables.metadata`. What is told is in `billing`'s `notices`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from api.tables import metadata
from billing.credit_tables import notices
from metering.tables import Id, Sequence64, tenants

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("url", String(2000), nullable=False),
    Column("types", Text, nullable=False),  # JSON: what it is told of; empty: of everything
    Column("secret", String(100), nullable=False),  # signing needs it whole
    Column("previous_secret", String(100)),
    Column("previous_until_us", BigInteger),  # exclusive: both sign until then
    Column("created_at_us", BigInteger, nullable=False),
    Column("disabled_at_us", BigInteger),
    Column("disabled_reason", String(200)),
    CheckConstraint("(previous_secret IS NULL) = (previous_until_us IS NULL)", name="overlap"),
)
Index("ix_webhook_endpoints_tenant", webhook_endpoints.c.tenant_id)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("seq", Sequence64, primary_key=True, autoincrement=True),
    Column("notice_id", String(80), ForeignKey(notices.c.id), nullable=False),
    Column("endpoint_id", Id, ForeignKey(webhook_endpoints.c.id), nullable=False),
    Column("state", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at_us", BigInteger, nullable=False),
    Column("last_status", Integer),  # of HTTP; null where no answer came
    Column("last_error", String(200)),
    Column("delivered_at_us", BigInteger),
    UniqueConstraint("notice_id", "endpoint_id"),
    CheckConstraint("state IN ('waiting', 'delivered', 'failed')", name="state"),
)
Index(
    "ix_webhook_deliveries_due",
    webhook_deliveries.c.next_at_us,
    sqlite_where=webhook_deliveries.c.state == "waiting",
    postgresql_where=webhook_deliveries.c.state == "waiting",
)
