"""Tables of the gateway itself: keys, idempotency and the audit log."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from metering.tables import NAMING, Id, Sequence64, requests, tenants

metadata = MetaData(naming_convention=NAMING)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id)),  # null: an operator's key
    Column("name", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("secret_sha256", String(64), nullable=False, unique=True),
    Column("last_four", String(4), nullable=False),
    Column("test_mode", Boolean, nullable=False, server_default=text("false")),
    Column("created_at_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger),
    Column("revoked_at_us", BigInteger),
    Column("last_used_at_us", BigInteger),
    Column("project_id", Id),  # what its requests count for; null: no project
    CheckConstraint(
        "role IN ('owner', 'finance', 'developer', 'operator', 'reviewer')", name="role"
    ),
    CheckConstraint("(tenant_id IS NULL) = (role IN ('operator', 'reviewer'))", name="role_scope"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("route", String(40), primary_key=True),
    Column("key", String(255), primary_key=True),
    # Of the request's content salt, and then of the body's own hash: erasure takes the salt.
    Column("salted_sha256", String(64), nullable=False),
    Column("request_id", Id, ForeignKey(requests.c.id), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
)

# Admissions of the last minutes, per lineage of keys: the rate limit, right across processes.
rate_windows = Table(
    "rate_windows",
    metadata,
    Column("key_id", Id, ForeignKey(api_keys.c.id), primary_key=True),  # the first of a lineage
    Column("minute", BigInteger, primary_key=True),  # epoch minutes
    Column("requests", Integer, nullable=False),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("seq", Sequence64, primary_key=True, autoincrement=True),
    Column("at_us", BigInteger, nullable=False),
    Column("actor", String(100), nullable=False),  # key id, or "cli"
    Column("action", String(64), nullable=False),  # past tense: "credit.granted"
    Column("tenant_id", Id),
    Column("subject", String(128), nullable=False),
    Column("detail", Text, nullable=False),  # JSON
)
Index("ix_audit_log_tenant", audit_log.c.tenant_id, audit_log.c.seq)
