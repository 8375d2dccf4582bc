"""Tables of payments: who pays through the provider, what is to be told it, what it told us."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from billing.tables import metadata
from metering.tables import Id, Sequence64, tenants

payment_accounts = Table(
    "payment_accounts",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("email", String(200), nullable=False),
    Column("past_due_since_us", BigInteger),  # since when an invoice's payment has failed
    Column("recharge_below_nano", BigInteger),  # null: no automatic recharge
    Column("recharge_minor", BigInteger),
    Column("recharge_failed", Boolean, nullable=False),  # off until it is set again
    CheckConstraint(
        "(recharge_below_nano IS NULL) = (recharge_minor IS NULL)", name="recharge_whole"
    ),
    CheckConstraint("recharge_minor > 0", name="recharge_positive"),
)

# First in, first out, for each tenant: a row waits for all before it.
payment_outbox = Table(
    "payment_outbox",
    metadata,
    Column("seq", Sequence64, primary_key=True, autoincrement=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("action", String(16), nullable=False),
    Column("subject", String(100), nullable=False),  # our id of what it is about
    Column("body", Text, nullable=False),  # JSON: what is to be said, as it was decided
    Column("state", String(16), nullable=False),
    Column("generation", Integer, nullable=False),  # part of the idempotency key
    Column("attempts", Integer, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("first_tried_at_us", BigInteger),  # of this generation
    Column("next_try_at_us", BigInteger, nullable=False),
    Column("provider_id", String(255)),
    Column("error", String(500)),
    Column("dropped_at_us", BigInteger),  # of a refused row: since when nobody wants it told
    UniqueConstraint("action", "subject"),
    CheckConstraint("state IN ('waiting', 'sent', 'refused')", name="state"),
    CheckConstraint("(state = 'sent') = (provider_id IS NOT NULL)", name="sent_is_known"),
)
Index("ix_payment_outbox_queue", payment_outbox.c.state, payment_outbox.c.tenant_id)

# Which of the provider's objects stands for which of ours; unique both ways.
payment_objects = Table(
    "payment_objects",
    metadata,
    Column("kind", String(16), primary_key=True),  # "customer", "invoice", "session", "intent"
    Column("subject", String(100), primary_key=True),
    Column("provider_id", String(255), nullable=False),
    UniqueConstraint("kind", "provider_id"),
)

top_ups = Table(
    "top_ups",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("reference", String(64), nullable=False),  # the caller's: the same again is the same
    Column("kind", String(16), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("minor_nano", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("url", Text),  # where a person pays
    Column("created_at_us", BigInteger, nullable=False),
    UniqueConstraint("tenant_id", "reference"),
    CheckConstraint("kind IN ('checkout', 'recharge')", name="kind"),
    CheckConstraint("state IN ('open', 'paid', 'failed')", name="state"),
    CheckConstraint("amount_minor > 0", name="amount_positive"),
)

# Which measures of which tenants the provider's own meters are told, and since which hour.
payment_meters = Table(
    "payment_meters",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("measure", String(16), primary_key=True),
    Column("event_name", String(100), nullable=False),
    Column("from_us", BigInteger, nullable=False),
    CheckConstraint("measure IN ('requests', 'input_tokens', 'output_tokens')", name="measure"),
)

# How much of an hour was queued for them, in the transaction that queued it, and what its rollup
# said then: the hour is counted again once that says something else.
payment_metered = Table(
    "payment_metered",
    metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("measure", String(16), primary_key=True),
    Column("start_us", BigInteger, primary_key=True),
    Column("told", BigInteger, nullable=False),
    Column("rolled_up", BigInteger, nullable=False),
    ForeignKeyConstraint(
        ["tenant_id", "measure"], [payment_meters.c.tenant_id, payment_meters.c.measure]
    ),
    CheckConstraint("told >= 0", name="told_not_negative"),
)

payment_webhooks = Table(
    "payment_webhooks",
    metadata,
    Column("id", String(255), primary_key=True),  # the provider's id of the event
    Column("type", String(100), nullable=False),
    Column("object_id", String(255), nullable=False),
    Column("sent_at_us", BigInteger, nullable=False),
    Column("received_at_us", BigInteger, nullable=False),
    Column("outcome", String(200), nullable=False),
)
