"""Tables of usage that other engines report, of the keys it is reported with, and of rollups.

They belong to `metering.tables.metadata`. Ids are kept apart from what they name: the ids stay,
unpartitioned, so that a replay years later is still a replay, while detail is cut off by time.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

from metering.tables import Id, Sequence64, metadata, tenants

# A key for reporting usage of one source, for the tenants it is bound to, and for nothing else.
metering_keys = Table(
    "metering_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(200), nullable=False),
    Column("source", String(100), nullable=False),
    Column("secret_sha256", String(64), nullable=False, unique=True),
    Column("last_four", String(4), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("revoked_at_us", BigInteger),
)

metering_key_tenants = Table(
    "metering_key_tenants",
    metadata,
    Column("key_id", Id, ForeignKey(metering_keys.c.id), primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
)

event_ids = Table(
    "event_ids",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("source", String(100), primary_key=True),
    Column("id", String(128), primary_key=True),
    Column("body_sha256", String(64), nullable=False),
    Column("ingested_at_us", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# On PostgreSQL partitioned by the month of `event_time_us`; the month must be part of the key.
outside_usage = Table(
    "outside_usage",
    metadata,
    Column("tenant_id", Id, nullable=False),
    Column("source", String(100), nullable=False),
    Column("id", String(128), nullable=False),
    Column("event_time_us", BigInteger, nullable=False),
    Column("ingested_at_us", BigInteger, nullable=False),
    Column("key_id", Id, nullable=False),
    Column("body", Text, nullable=False),  # canonical JSON
    PrimaryKeyConstraint("tenant_id", "source", "id", "event_time_us"),
    postgresql_partition_by="RANGE (event_time_us)",
    sqlite_with_rowid=False,
)

# What is accepted and not yet rated: nothing is ever accepted and forgotten.
outside_waiting = Table(
    "outside_waiting",
    metadata,
    Column("seq", Sequence64, primary_key=True, autoincrement=True),
    Column("tenant_id", Id, nullable=False),
    Column("source", String(100), nullable=False),
    Column("id", String(128), nullable=False),
    Column("event_time_us", BigInteger, nullable=False),
    Column("ingested_at_us", BigInteger, nullable=False),
    Column("reason", String(200)),  # why it could not be rated so far; null: not tried yet
)
# What waits for a person. Nothing else is indexed: every event passes through this table.
Index(
    "ix_outside_waiting_unrated",
    outside_waiting.c.seq,
    sqlite_where=outside_waiting.c.reason.is_not(None),
    postgresql_where=outside_waiting.c.reason.is_not(None),
)

# Projections of request summaries; `dflash usage rebuild` makes them anew.
usage_rollups = Table(
    "usage_rollups",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("width", String(8), primary_key=True),
    Column("start_us", BigInteger, primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("energy_class", String(16), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("energy_uj", BigInteger),
    CheckConstraint("width IN ('minute', 'hour', 'day')", name="width"),
    CheckConstraint(
        "(energy_class = 'unavailable') = (energy_uj IS NULL)", name="energy_null_not_zero"
    ),
)

# Minutes to roll up anew. Only ever inserted and deleted, so that no two writers wait.
rollup_marks = Table(
    "rollup_marks",
    metadata,
    Column("seq", Sequence64, primary_key=True, autoincrement=True),
    Column("tenant_id", Id, nullable=False),
    Column("minute_us", BigInteger, nullable=False),
)
Index("ix_rollup_marks_tenant", rollup_marks.c.tenant_id, rollup_marks.c.seq)
