"""Tables of tenants, requests and usage. Times are epoch microseconds in UTC, energy microjoules.

Foreign keys across packages only point down the layers: billing may refer to these, never the
other way round, which is why a tariff version is a plain id here.
"""

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
    UniqueConstraint,
    text,
)

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

metadata = MetaData(naming_convention=NAMING)

Id = String(64)
# SQLite only autoincrements a column declared INTEGER, which is 64 bits wide there anyway.
Sequence64 = BigInteger().with_variant(Integer, "sqlite")

tenants = Table(
    "tenants",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(200), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("time_zone", String(64), nullable=False),
    Column("review_opt_in", Boolean, nullable=False),
    Column("review_delivery", String(8), nullable=False),
    Column("suspended", Boolean, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    # Reviewers see its texts with what points at a person hidden.
    Column("review_redaction", Boolean, nullable=False, server_default=text("true")),
    CheckConstraint("review_delivery IN ('now', 'held')", name="review_delivery"),
)

requests = Table(
    "requests",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("key_id", Id, nullable=False),
    Column("model", String(200), nullable=False),
    Column("route", String(40), nullable=False),  # "generate", "chat.completions", "completions"
    Column("tariff_version_id", Id, nullable=False),
    Column("status", String(16), nullable=False),
    Column("finish_reason", String(16)),
    Column("parameters", Text, nullable=False),  # JSON, as validated
    Column("prompt", Text),  # what was sent, JSON; null once erased
    Column("output", Text),  # the text delivered; null until final, or once erased
    Column("input_tokens", Integer, nullable=False),
    Column("max_tokens", Integer, nullable=False),
    Column("max_cost_nano", BigInteger),
    Column("end_user", String(200)),
    Column("tags", Text),  # JSON object
    Column("test_mode", Boolean, nullable=False, server_default=text("false")),
    Column("started_at_us", BigInteger, nullable=False),
    Column("ended_at_us", BigInteger),
    Column("project_id", Id),  # of the tenant's key at admission; null: none
    Column("engine", Text),  # JSON, what it was admitted for; null: not ours, or not recorded
    Column("content_salt", String(64)),  # hex, before all content that is hashed; null once erased
    Column("replica", String(40)),  # the gateway's name of the engine; null: not recorded
    Column("calibration", String(64)),  # the version that its scores are read by; null: none
    CheckConstraint(
        "status IN ('admitted', 'running', 'completed', 'refused', 'cancelled', 'failed')",
        name="status",
    ),
)
Index("ix_requests_tenant_started", requests.c.tenant_id, requests.c.started_at_us)
# A start looks for the newest of each replica.
Index(
    "ix_requests_replica",
    requests.c.replica,
    requests.c.id,
    sqlite_where=requests.c.replica.is_not(None),
    postgresql_where=requests.c.replica.is_not(None),
)
# Recovery looks for these after a crash.
Index(
    "ix_requests_live",
    requests.c.status,
    sqlite_where=requests.c.status.in_(["admitted", "running"]),
    postgresql_where=requests.c.status.in_(["admitted", "running"]),
)

usage_events = Table(
    "usage_events",
    metadata,
    Column("seq", Sequence64, primary_key=True, autoincrement=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("source", String(100), nullable=False),
    Column("id", String(128), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("request_id", Id, ForeignKey(requests.c.id), nullable=False),
    Column("index", Integer, nullable=False),
    Column("body", Text, nullable=False),  # canonical JSON
    Column("body_sha256", String(64), nullable=False),
    Column("event_time_us", BigInteger, nullable=False),
    Column("ingested_at_us", BigInteger, nullable=False),
    UniqueConstraint("tenant_id", "source", "id"),
    CheckConstraint("kind IN ('block', 'energy', 'terminal')", name="kind"),
)
Index("ix_usage_events_request", usage_events.c.request_id, usage_events.c.seq)

request_summaries = Table(
    "request_summaries",
    metadata,
    Column("request_id", Id, ForeignKey(requests.c.id), primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("status", String(16), nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("blocks", Integer, nullable=False),  # steps that emitted: tokens / blocks is the length
    Column("complete_units", Integer, nullable=False),
    Column("fragment_units", Integer, nullable=False),
    Column("tier", String(16)),  # null when there is no score
    Column("geo_mean", String(8)),
    Column("information_ubits", BigInteger),
    Column("energy_class", String(16), nullable=False),
    Column("energy_uj", BigInteger),
    Column("accepted_tokens", Integer, nullable=False),
    Column("drafted_depth", Integer, nullable=False),
    Column("ended_at_us", BigInteger, nullable=False),
    Column("body", Text, nullable=False),  # the whole RequestSummary, JSON
    CheckConstraint(
        "(energy_class = 'unavailable') = (energy_uj IS NULL)", name="energy_null_not_zero"
    ),
)
# Covers what usage adds up: a summary's body is many times as long as all of these.
Index(
    "ix_request_summaries_tenant_ended",
    request_summaries.c.tenant_id,
    request_summaries.c.ended_at_us,
    request_summaries.c.energy_class,
    request_summaries.c.energy_uj,
    request_summaries.c.input_tokens,
    request_summaries.c.output_tokens,
    request_summaries.c.complete_units,
    request_summaries.c.fragment_units,
    request_summaries.c.information_ubits,
    request_summaries.c.geo_mean,
)

# One row per settled stretch of a device's meter: its parts sum to the meter, in the database too.
meter_windows = Table(
    "meter_windows",
    metadata,
    Column("seq", Sequence64, primary_key=True, autoincrement=True),
    Column("device", String(100), nullable=False),
    Column("epoch", String(64), nullable=False),
    Column("source", String(40), nullable=False),
    Column("energy_class", String(16), nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("recorded_at_us", BigInteger, nullable=False),
    Column("meter_uj", BigInteger, nullable=False),
    Column("requests_uj", BigInteger, nullable=False),
    Column("idle_uj", BigInteger, nullable=False),
    Column("overhead_uj", BigInteger, nullable=False),
    Column("external_uj", BigInteger, nullable=False),
    Column("unattributed_uj", BigInteger, nullable=False),
    UniqueConstraint("device", "epoch", "start_ns"),
    CheckConstraint(
        "meter_uj = requests_uj + idle_uj + overhead_uj + external_uj + unattributed_uj",
        name="parts_sum_to_meter",
    ),
    CheckConstraint("end_ns > start_ns", name="half_open"),
)

# The engine's own counters, kept per engine process, so that `reconcile` can compare them.
engine_counters = Table(
    "engine_counters",
    metadata,
    Column("engine_epoch", String(64), primary_key=True),
    Column("steps", BigInteger, nullable=False),
    Column("blocks", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),  # all that the engine emitted
    Column("withheld_tokens", BigInteger, nullable=False),  # those of them that no event states
    Column("updated_at_us", BigInteger, nullable=False),
)
