"""Tables of grants, postpaid terms, budgets and whose they are, and of what paid for each hold.

They belong to `billing.tables.metadata`. Amounts are BIGINT of 10^-9 currency units.
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
)

from billing.tables import metadata, transfers
from metering.tables import Id, requests, tenants

# A lot of credit with an order of its own; credit without one is the tenant's plain credit.
grants = Table(
    "grants",
    metadata,
    Column("id", String(160), ForeignKey(transfers.c.id), primary_key=True),  # what brought it
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("priority", Integer, nullable=False),  # lower is spent first
    Column("amount_nano", BigInteger, nullable=False),
    Column("remaining_nano", BigInteger, nullable=False),  # neither spent nor held
    Column("effective_from_us", BigInteger, nullable=False),
    Column("expires_at_us", BigInteger),  # exclusive; null: never
    Column("created_at_us", BigInteger, nullable=False),
    CheckConstraint("kind IN ('paid', 'promotional')", name="kind"),
    CheckConstraint("amount_nano > 0", name="positive"),
    CheckConstraint("remaining_nano BETWEEN 0 AND amount_nano", name="spends_at_most_itself"),
    CheckConstraint("expires_at_us IS NULL OR expires_at_us > effective_from_us", name="half_open"),
)
Index("ix_grants_tenant", grants.c.tenant_id, grants.c.expires_at_us)

# What pays for a request, in the order of taking: what its hold was taken from and, once that is
# resolved, what was paid from it, less what was given back.
fundings = Table(
    "fundings",
    metadata,
    Column("request_id", Id, ForeignKey(requests.c.id), primary_key=True),
    Column("source", String(160), primary_key=True),  # a grant's id, "credit" or "receivable"
    Column("position", Integer, nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    CheckConstraint("amount_nano >= 0", name="non_negative"),
)
Index("ix_fundings_source", fundings.c.source)

# A tenant without a row is prepaid and is told nothing.
credit_terms = Table(
    "credit_terms",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("receivable_limit_nano", BigInteger, nullable=False),  # 0: prepaid
    Column("alert_below_nano", BigInteger),  # null: no alert
    Column("alerted_at_us", BigInteger),  # while the balance stays below
    Column("changed_at_us", BigInteger, nullable=False),
    Column("paused_at_us", BigInteger),  # since when nothing new is had on account; null: it is
    CheckConstraint("receivable_limit_nano >= 0", name="limit_non_negative"),
)

budgets = Table(
    "budgets",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("scope", String(8), nullable=False),
    Column("scope_id", Id),  # a key or a project; null: all of the tenant
    Column("kind", String(8), nullable=False),
    Column("period", String(8), nullable=False),
    Column("limit_nano", BigInteger, nullable=False),
    Column("alerts", Text, nullable=False),  # JSON: per cents of the limit, ascending
    Column("created_at_us", BigInteger, nullable=False),
    Column("closed_at_us", BigInteger),
    CheckConstraint("scope IN ('tenant', 'key', 'project')", name="scope"),
    CheckConstraint("(scope = 'tenant') = (scope_id IS NULL)", name="scope_names_one"),
    CheckConstraint("kind IN ('hard', 'soft')", name="kind"),
    CheckConstraint("period IN ('day', 'week', 'month', 'ever')", name="period"),
    CheckConstraint("limit_nano >= 0", name="limit_non_negative"),
)
Index("ix_budgets_tenant", budgets.c.tenant_id)

budget_windows = Table(
    "budget_windows",
    metadata,
    Column("budget_id", Id, ForeignKey(budgets.c.id), primary_key=True),
    Column("start_us", BigInteger, primary_key=True),
    Column("end_us", BigInteger),  # exclusive; null: never
    Column("reserved_nano", BigInteger, nullable=False),  # by holds that are still pending
    Column("spent_nano", BigInteger, nullable=False),
    Column("alerted_pct", Integer, nullable=False),  # the highest alert sent; 0: none
    CheckConstraint("reserved_nano >= 0 AND spent_nano >= 0", name="non_negative"),
)

budget_reservations = Table(
    "budget_reservations",
    metadata,
    Column("request_id", Id, ForeignKey(requests.c.id), primary_key=True),
    Column("budget_id", Id, ForeignKey(budgets.c.id), primary_key=True),
    Column("start_us", BigInteger, nullable=False),
    Column("reserved_nano", BigInteger, nullable=False),
    Column("spent_nano", BigInteger, nullable=False),
    CheckConstraint("reserved_nano >= 0 AND spent_nano >= 0", name="non_negative"),
)
Index("ix_budget_reservations_budget", budget_reservations.c.budget_id)

# A lineage has the id of its first key, which has no row here; whoever rotates a key goes on in it.
key_lineages = Table(
    "key_lineages",
    metadata,
    Column("key_id", Id, primary_key=True),
    Column("lineage_id", Id, nullable=False),
    Column("position", Integer, nullable=False),  # from 1, in the order of rotation
)
Index("ix_key_lineages_lineage", key_lineages.c.lineage_id, key_lineages.c.position)

# The outbox: what tenants are told, written with the change it speaks of.
notices = Table(
    "notices",
    metadata,
    Column("id", String(80), primary_key=True),  # derived from its cause: told once
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("type", String(64), nullable=False),  # "budget.threshold_reached"
    Column("data", Text, nullable=False),  # JSON
    Column("created_at_us", BigInteger, nullable=False),
    Column("dispatched_at_us", BigInteger),  # when its deliveries were planned
)
Index(
    "ix_notices_waiting",
    notices.c.created_at_us,
    sqlite_where=notices.c.dispatched_at_us.is_(None),
    postgresql_where=notices.c.dispatched_at_us.is_(None),
)
