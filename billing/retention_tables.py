"""Tables of how long content is kept, of what was erased, and of blocks that were compacted.

They belong to `billing.tables.metadata`.
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
)

from billing.tables import metadata
from metering.tables import Id, Sequence64, requests, tenants

# A tenant without a row keeps its content until it erases it.
retention_policies = Table(
    "retention_policies",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("content_days", Integer),  # null: until it is erased
    Column("changed_at_us", BigInteger, nullable=False),
    CheckConstraint("content_days IS NULL OR content_days >= 0", name="days_non_negative"),
)

# Whose block events are gone, and what they came to: what reconciliation then compares.
compactions = Table(
    "compactions",
    metadata,
    Column("request_id", Id, ForeignKey(requests.c.id), primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("blocks", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("accepted_tokens", Integer, nullable=False),
    Column("compacted_at_us", BigInteger, nullable=False),
)

erasures = Table(
    "erasures",
    metadata,
    Column("seq", Sequence64, primary_key=True, autoincrement=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("reason", String(16), nullable=False),
    Column("requests", Integer, nullable=False),  # whose content was erased
    Column("erased_at_us", BigInteger, nullable=False),
    CheckConstraint("reason IN ('asked', 'retention')", name="reason"),
)
Index("ix_erasures_tenant", erasures.c.tenant_id)
