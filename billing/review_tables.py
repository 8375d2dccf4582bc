"""Tables of what reviewers said and are owed, and of what a tenant lets reviews cost."""

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

from billing.tables import metadata, review_items
from metering.tables import Id, tenants

# One row for each opinion: an item has one, two where a second was wanted, three where they differ.
review_opinions = Table(
    "review_opinions",
    metadata,
    Column("item_id", Id, ForeignKey(review_items.c.id), primary_key=True),
    Column("number", Integer, primary_key=True),  # 1, 2, 3
    Column("reviewer_id", Id, nullable=False),
    Column("claim_token", Integer, nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("reasons", Text, nullable=False),  # JSON array
    Column("note", Text),
    Column("edited_output", Text),
    Column("given_at_us", BigInteger, nullable=False),
    UniqueConstraint("item_id", "reviewer_id"),
    CheckConstraint("verdict IN ('approve', 'edit', 'reject')", name="verdict"),
)
Index("ix_review_opinions_reviewer", review_opinions.c.reviewer_id)

review_payouts = Table(
    "review_payouts",
    metadata,
    Column("id", String(128), primary_key=True),  # of its reviewer and reference: paid once
    Column("reviewer_id", Id, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("amount_nano", BigInteger, nullable=False),
    Column("reference", String(100), nullable=False),
    Column("paid_at_us", BigInteger, nullable=False),
    CheckConstraint("amount_nano > 0", name="positive"),
)
Index("ix_review_payouts_reviewer", review_payouts.c.reviewer_id)

review_caps = Table(
    "review_caps",
    metadata,
    Column("tenant_id", Id, ForeignKey(tenants.c.id), primary_key=True),
    Column("cap_nano", BigInteger),  # of a calendar month; null: none
    Column("changed_at_us", BigInteger, nullable=False),
    CheckConstraint("cap_nano IS NULL OR cap_nano >= 0", name="non_negative"),
)
