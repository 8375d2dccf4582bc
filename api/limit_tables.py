"""Tables of projects, and of what a tenant or a key may do at once or in a minute.

They belong to `api.tables.metadata`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    String,
    Table,
    UniqueConstraint,
)

from api.tables import metadata
from metering.tables import Id, tenants

projects = Table(
    "projects",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("name", String(200), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("archived_at_us", BigInteger),
    UniqueConstraint("tenant_id", "name"),
)

# Null is no limit of this kind. What is used is counted from requests and their summaries: there
# is no counter that could leak.
limits = Table(
    "limits",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("subject", Id, primary_key=True),  # a lineage of keys, or "tenant" for all of its keys
    Column("requests_per_minute", Integer),
    Column("tokens_per_minute", BigInteger),
    Column("joules_per_minute", BigInteger),
    Column("concurrency", Integer),
    Column("changed_at_us", BigInteger, nullable=False),
    CheckConstraint(
        "(requests_per_minute IS NULL OR requests_per_minute > 0)"
        " AND (tokens_per_minute IS NULL OR tokens_per_minute > 0)"
        " AND (joules_per_minute IS NULL OR joules_per_minute > 0)"
        " AND (concurrency IS NULL OR concurrency > 0)",
        name="positive",
    ),
)
