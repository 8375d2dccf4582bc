"""Tables of tariffs, ledger, holds, rated lines, receipts and reviews.

Amounts are BIGINT of 10^-9 currency units (`*_nano`). Transfers, rated lines, receipts and
adjustments are append-only: the migration installs triggers that refuse UPDATE and DELETE.
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

from metering.tables import NAMING, Id, Sequence64, requests, tenants

metadata = MetaData(naming_convention=NAMING)

tariff_versions = Table(
    "tariff_versions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tariff", String(64), nullable=False),  # "token", "semantic", ...
    Column("version", Integer, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("document", Text, nullable=False),  # canonical JSON, validated
    Column("document_sha256", String(64), nullable=False),
    Column("effective_from_us", BigInteger, nullable=False),
    Column("effective_to_us", BigInteger),  # exclusive; null is open
    Column("created_at_us", BigInteger, nullable=False),
    UniqueConstraint("tariff", "version"),
)

# Always empty: by it, triggers on SQLite find out whether a statement would replace rows.
replacements = Table(
    "replacements",
    metadata,
    Column("replaced", Integer, nullable=False, server_default=text("1")),
)

tenant_tariffs = Table(
    "tenant_tariffs",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("effective_from_us", BigInteger, primary_key=True),
    Column("tariff", String(64), nullable=False),
)

accounts = Table(
    "accounts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id)),  # null: the operator's own
    Column("kind", String(32), nullable=False),
    Column("currency", String(3), nullable=False),
    # A projection of the transfers, kept in the same transaction; `reconcile` rebuilds it.
    Column("debits_nano", BigInteger, nullable=False),
    Column("credits_nano", BigInteger, nullable=False),
    Column("reviewer_id", Id),  # what is owed to whom, of the operator's accounts
    CheckConstraint("debits_nano >= 0 AND credits_nano >= 0", name="non_negative_sides"),
    CheckConstraint(
        "kind NOT IN ('tenant_credit', 'promotional', 'holds', 'review_pool', 'reviewer_payable')"
        " OR credits_nano >= debits_nano",
        name="no_overdraft",
    ),
)
# Null tenants are distinct in a unique constraint, so the id itself is unique by construction:
# "<tenant, reviewer or op>:<kind>:<currency>".

transfers = Table(
    "transfers",
    metadata,
    Column("seq", Sequence64, primary_key=True, autoincrement=True),
    Column("id", String(160), nullable=False, unique=True),  # derived from its cause: idempotent
    Column("transaction_id", String(128), nullable=False),
    Column("debit_account_id", Id, ForeignKey(accounts.c.id), nullable=False),
    Column("credit_account_id", Id, ForeignKey(accounts.c.id), nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("request_id", Id, ForeignKey(requests.c.id)),
    Column("reverses_id", String(160), ForeignKey("transfers.id")),
    Column("event_time_us", BigInteger, nullable=False),
    Column("booked_at_us", BigInteger, nullable=False),
    CheckConstraint("amount_nano > 0", name="positive"),
    CheckConstraint("debit_account_id <> credit_account_id", name="two_accounts"),
)
Index("ix_transfers_request", transfers.c.request_id)
Index("ix_transfers_transaction", transfers.c.transaction_id)

holds = Table(
    "holds",
    metadata,
    Column("request_id", Id, ForeignKey(requests.c.id), primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("amount_nano", BigInteger, nullable=False),  # reserved so far
    Column("ceiling_nano", BigInteger),  # the request's max_cost; null: what credit affords
    Column("posted_nano", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("expires_at_us", BigInteger, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("resolved_at_us", BigInteger),
    CheckConstraint("state IN ('pending', 'posted', 'voided', 'expired')", name="state"),
    CheckConstraint("posted_nano BETWEEN 0 AND amount_nano", name="posts_at_most_itself"),
    CheckConstraint("(state = 'pending') = (resolved_at_us IS NULL)", name="resolved_once"),
)
Index("ix_holds_state_expires", holds.c.state, holds.c.expires_at_us)

rated_lines = Table(
    "rated_lines",
    metadata,
    Column("request_id", Id, ForeignKey(requests.c.id), primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("tariff_version_id", Id, ForeignKey(tariff_versions.c.id), nullable=False),
    Column("component", String(32), nullable=False),
    Column("detail", String(64), nullable=False),  # "complete/standard", "estimated", ""
    Column("quantity", String(40), nullable=False),  # decimal
    Column("unit", String(24), nullable=False),  # "tokens", "joules", "bits", "requests", ...
    Column("unit_price", String(40), nullable=False),  # decimal, multipliers applied
    Column("amount_nano", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("event_time_us", BigInteger, nullable=False),
)
# Covers what the tenant's page adds up, so that it reads no line.
Index(
    "ix_rated_lines_tenant_time",
    rated_lines.c.tenant_id,
    rated_lines.c.event_time_us,
    rated_lines.c.component,
    rated_lines.c.currency,
    rated_lines.c.amount_nano,
)

receipts = Table(
    "receipts",
    metadata,
    Column("request_id", Id, ForeignKey(requests.c.id), primary_key=True),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("document", Text, nullable=False),  # canonical JSON, signature not included
    Column("sha256", String(64), nullable=False, unique=True),
    Column("kid", String(64), nullable=False),
    Column("signature", String(128), nullable=False),  # base64url, no padding
    Column("total_nano", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
)

adjustments = Table(
    "adjustments",
    metadata,
    Column("id", String(128), primary_key=True),  # derived from its cause: idempotent
    Column("request_id", Id, ForeignKey(requests.c.id), nullable=False),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("receipt_sha256", String(64), ForeignKey(receipts.c.sha256), nullable=False),
    Column("document", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("kid", String(64), nullable=False),
    Column("signature", String(128), nullable=False),
    Column("amount_nano", BigInteger, nullable=False),  # signed: negative is a refund
    Column("created_at_us", BigInteger, nullable=False),
)
Index("ix_adjustments_request", adjustments.c.request_id)

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("kid", String(64), primary_key=True),
    Column("public_key", String(64), nullable=False),  # base64url of 32 bytes
    Column("created_at_us", BigInteger, nullable=False),
    Column("retired_at_us", BigInteger),
)

review_items = Table(
    "review_items",
    metadata,
    Column("id", Id, primary_key=True),
    Column("request_id", Id, ForeignKey(requests.c.id), nullable=False),
    Column("tenant_id", Id, ForeignKey(tenants.c.id), nullable=False),
    Column("rule_version", String(32), nullable=False),
    Column("reason", String(32), nullable=False),
    Column("geo_mean", String(8)),
    Column("fee_nano", BigInteger, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("state", String(16), nullable=False),
    Column("claimed_by", Id),
    Column("claim_token", Integer, nullable=False),  # fencing: grows with every claim
    Column("claim_expires_at_us", BigInteger),
    Column("verdict", String(16)),
    Column("note", Text),
    Column("edited_output", Text),
    Column("resolved_by", Id),
    Column("queued_at_us", BigInteger, nullable=False),
    Column("due_at_us", BigInteger, nullable=False),
    Column("resolved_at_us", BigInteger),
    Column("paid_by", String(8), nullable=False, server_default=text("'operator'")),
    Column("delivery", String(8), nullable=False, server_default=text("'now'")),
    Column("opinions_wanted", Integer, nullable=False, server_default=text("1")),
    Column("opinions", Integer, nullable=False, server_default=text("0")),
    Column("reasons", Text),  # of the verdict: a JSON array
    Column("calibrated", String(8)),
    Column("calibration", String(64)),  # the version that `calibrated` is of
    Column("inclusion_ppm", Integer),  # how likely it was to be queued; null: not recorded
    Column("sampled", Boolean, nullable=False, server_default=text("false")),  # by the audit
    UniqueConstraint("request_id", "rule_version"),
    CheckConstraint("state IN ('queued', 'claimed', 'resolved', 'lapsed')", name="state"),
    CheckConstraint("verdict IS NULL OR verdict IN ('approve', 'edit', 'reject')", name="verdict"),
)
Index("ix_review_items_state_queued", review_items.c.state, review_items.c.queued_at_us)
Index("ix_review_items_tenant_queued", review_items.c.tenant_id, review_items.c.queued_at_us)
