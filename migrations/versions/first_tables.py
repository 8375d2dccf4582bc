"""The first tables: tenants, requests and usage; money; keys, idempotency and the audit log.

Revision 0001, after nothing. What was counted, booked or signed is append-only from here on: the
triggers refuse UPDATE and DELETE whoever asks.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing import triggers

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY_BESIDE_MONEY = ("usage_events", "audit_log")
# SQLite only numbers rows by itself in a column declared INTEGER, which is 64 bits wide there.
SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLES = (
    "engine_counters",
    "meter_windows",
    "tenants",
    "requests",
    "request_summaries",
    "usage_events",
    "accounts",
    "holds",
    "receipts",
    "review_items",
    "signing_keys",
    "tariff_versions",
    "tenant_tariffs",
    "adjustments",
    "rated_lines",
    "transfers",
    "api_keys",
    "audit_log",
    "idempotency_keys",
    "rate_windows",
)  # in the order of their creation


def upgrade() -> None:
    """Create every table, then the triggers."""
    _create_metering()
    _create_billing()
    _create_api()
    connection = op.get_bind()
    dialect = connection.dialect.name
    for statement in triggers.create(dialect):
        connection.exec_driver_sql(statement)
    for table in APPEND_ONLY_BESIDE_MONEY:
        for statement in triggers.append_only(table, dialect):
            connection.exec_driver_sql(statement)


def downgrade() -> None:
    """Drop the triggers and every table, and with them all data."""
    connection = op.get_bind()
    dialect = connection.dialect.name
    for statement in triggers.drop(dialect):
        connection.exec_driver_sql(statement)
    for table in APPEND_ONLY_BESIDE_MONEY:
        for statement in triggers.drop_append_only(table, dialect):
            connection.exec_driver_sql(statement)
    for table in reversed(TABLES):
        op.drop_table(table)


def _create_metering() -> None:
    op.create_table(
        "engine_counters",
        sa.Column("engine_epoch", sa.String(length=64), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("blocks", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("withheld_tokens", sa.BigInteger(), nullable=False),
        sa.Column("updated_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("engine_epoch", name="pk_engine_counters"),
    )
    op.create_table(
        "meter_windows",
        sa.Column("seq", SEQUENCE, nullable=False),
        sa.Column("device", sa.String(length=100), nullable=False),
        sa.Column("epoch", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=40), nullable=False),
        sa.Column("energy_class", sa.String(length=16), nullable=False),
        sa.Column("start_ns", sa.BigInteger(), nullable=False),
        sa.Column("end_ns", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at_us", sa.BigInteger(), nullable=False),
        sa.Column("meter_uj", sa.BigInteger(), nullable=False),
        sa.Column("requests_uj", sa.BigInteger(), nullable=False),
        sa.Column("idle_uj", sa.BigInteger(), nullable=False),
        sa.Column("overhead_uj", sa.BigInteger(), nullable=False),
        sa.Column("external_uj", sa.BigInteger(), nullable=False),
        sa.Column("unattributed_uj", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("end_ns > start_ns", name="ck_meter_windows_half_open"),
        sa.CheckConstraint(
            "meter_uj = requests_uj + idle_uj + overhead_uj + external_uj + unattributed_uj",
            name="ck_meter_windows_parts_sum_to_meter",
        ),
        sa.PrimaryKeyConstraint("seq", name="pk_meter_windows"),
        sa.UniqueConstraint(
            "device", "epoch", "start_ns", name="uq_meter_windows_device_epoch_start_ns"
        ),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("review_opt_in", sa.Boolean(), nullable=False),
        sa.Column("review_delivery", sa.String(length=8), nullable=False),
        sa.Column("suspended", sa.Boolean(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("review_delivery IN ('now', 'held')", name="ck_tenants_review_delivery"),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("route", sa.String(length=40), nullable=False),
        sa.Column("tariff_version_id", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("finish_reason", sa.String(length=16), nullable=True),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("max_cost_nano", sa.BigInteger(), nullable=True),
        sa.Column("end_user", sa.String(length=200), nullable=True),
        sa.Column("tags", sa.Text(), nullable=True),
        sa.Column("test_mode", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("started_at_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "status IN ('admitted', 'running', 'completed', 'refused', 'cancelled', 'failed')",
            name="ck_requests_status",
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_requests_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_requests"),
    )
    op.create_index(
        "ix_requests_live",
        "requests",
        ["status"],
        sqlite_where=sa.text("status IN ('admitted', 'running')"),
        postgresql_where=sa.text("status IN ('admitted', 'running')"),
    )
    op.create_index("ix_requests_tenant_started", "requests", ["tenant_id", "started_at_us"])
    op.create_table(
        "request_summaries",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("blocks", sa.Integer(), nullable=False),
        sa.Column("complete_units", sa.Integer(), nullable=False),
        sa.Column("fragment_units", sa.Integer(), nullable=False),
        sa.Column("tier", sa.String(length=16), nullable=True),
        sa.Column("geo_mean", sa.String(length=8), nullable=True),
        sa.Column("information_ubits", sa.BigInteger(), nullable=True),
        sa.Column("energy_class", sa.String(length=16), nullable=False),
        sa.Column("energy_uj", sa.BigInteger(), nullable=True),
        sa.Column("accepted_tokens", sa.Integer(), nullable=False),
        sa.Column("drafted_depth", sa.Integer(), nullable=False),
        sa.Column("ended_at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "(energy_class = 'unavailable') = (energy_uj IS NULL)",
            name="ck_request_summaries_energy_null_not_zero",
        ),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name="fk_request_summaries_request_id"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_request_summaries_tenant_id"
        ),
        sa.PrimaryKeyConstraint("request_id", name="pk_request_summaries"),
    )
    op.create_index(
        "ix_request_summaries_tenant_ended", "request_summaries", ["tenant_id", "ended_at_us"]
    )
    op.create_table(
        "usage_events",
        sa.Column("seq", SEQUENCE, nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=100), nullable=False),
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("event_time_us", sa.BigInteger(), nullable=False),
        sa.Column("ingested_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('block', 'energy', 'terminal')", name="ck_usage_events_kind"),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name="fk_usage_events_request_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_usage_events_tenant_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_usage_events"),
        sa.UniqueConstraint(
            "tenant_id", "source", "id", name="uq_usage_events_tenant_id_source_id"
        ),
    )
    op.create_index("ix_usage_events_request", "usage_events", ["request_id", "seq"])


def _create_billing() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("debits_nano", sa.BigInteger(), nullable=False),
        sa.Column("credits_nano", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "kind NOT IN ('tenant_credit', 'promotional', 'holds', 'review_pool', 'reviewer_payable') OR credits_nano >= debits_nano",
            name="ck_accounts_no_overdraft",
        ),
        sa.CheckConstraint(
            "debits_nano >= 0 AND credits_nano >= 0", name="ck_accounts_non_negative_sides"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_accounts_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
    )
    op.create_table(
        "holds",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("ceiling_nano", sa.BigInteger(), nullable=True),
        sa.Column("posted_nano", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("resolved_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(state = 'pending') = (resolved_at_us IS NULL)", name="ck_holds_resolved_once"
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'posted', 'voided', 'expired')", name="ck_holds_state"
        ),
        sa.CheckConstraint(
            "posted_nano BETWEEN 0 AND amount_nano", name="ck_holds_posts_at_most_itself"
        ),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name="fk_holds_request_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_holds_tenant_id"),
        sa.PrimaryKeyConstraint("request_id", name="pk_holds"),
    )
    op.create_index("ix_holds_state_expires", "holds", ["state", "expires_at_us"])
    op.create_table(
        "receipts",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("kid", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.String(length=128), nullable=False),
        sa.Column("total_nano", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name="fk_receipts_request_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_receipts_tenant_id"),
        sa.PrimaryKeyConstraint("request_id", name="pk_receipts"),
        sa.UniqueConstraint("sha256", name="uq_receipts_sha256"),
    )
    op.create_table(
        "review_items",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("rule_version", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("geo_mean", sa.String(length=8), nullable=True),
        sa.Column("fee_nano", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("claimed_by", sa.String(length=64), nullable=True),
        sa.Column("claim_token", sa.Integer(), nullable=False),
        sa.Column("claim_expires_at_us", sa.BigInteger(), nullable=True),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("edited_output", sa.Text(), nullable=True),
        sa.Column("resolved_by", sa.String(length=64), nullable=True),
        sa.Column("queued_at_us", sa.BigInteger(), nullable=False),
        sa.Column("due_at_us", sa.BigInteger(), nullable=False),
        sa.Column("resolved_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'claimed', 'resolved', 'lapsed')", name="ck_review_items_state"
        ),
        sa.CheckConstraint(
            "verdict IS NULL OR verdict IN ('approve', 'edit', 'reject')",
            name="ck_review_items_verdict",
        ),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name="fk_review_items_request_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_review_items_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_review_items"),
        sa.UniqueConstraint(
            "request_id", "rule_version", name="uq_review_items_request_id_rule_version"
        ),
    )
    op.create_index("ix_review_items_state_queued", "review_items", ["state", "queued_at_us"])
    op.create_table(
        "signing_keys",
        sa.Column("kid", sa.String(length=64), nullable=False),
        sa.Column("public_key", sa.String(length=64), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("retired_at_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("kid", name="pk_signing_keys"),
    )
    op.create_table(
        "tariff_versions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tariff", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("document_sha256", sa.String(length=64), nullable=False),
        sa.Column("effective_from_us", sa.BigInteger(), nullable=False),
        sa.Column("effective_to_us", sa.BigInteger(), nullable=True),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tariff_versions"),
        sa.UniqueConstraint("tariff", "version", name="uq_tariff_versions_tariff_version"),
    )
    op.create_table(
        "tenant_tariffs",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("effective_from_us", sa.BigInteger(), nullable=False),
        sa.Column("tariff", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_tenant_tariffs_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "effective_from_us", name="pk_tenant_tariffs"),
    )
    op.create_table(
        "adjustments",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("receipt_sha256", sa.String(length=64), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("kid", sa.String(length=64), nullable=False),
        sa.Column("signature", sa.String(length=128), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["receipt_sha256"], ["receipts.sha256"], name="fk_adjustments_receipt_sha256"
        ),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name="fk_adjustments_request_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_adjustments_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_adjustments"),
    )
    op.create_index("ix_adjustments_request", "adjustments", ["request_id"])
    op.create_table(
        "rated_lines",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("tariff_version_id", sa.String(length=64), nullable=False),
        sa.Column("component", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.String(length=64), nullable=False),
        sa.Column("quantity", sa.String(length=40), nullable=False),
        sa.Column("unit", sa.String(length=24), nullable=False),
        sa.Column("unit_price", sa.String(length=40), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("event_time_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name="fk_rated_lines_request_id"),
        sa.ForeignKeyConstraint(
            ["tariff_version_id"], ["tariff_versions.id"], name="fk_rated_lines_tariff_version_id"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_rated_lines_tenant_id"),
        sa.PrimaryKeyConstraint("request_id", "line", name="pk_rated_lines"),
    )
    op.create_index("ix_rated_lines_tenant_time", "rated_lines", ["tenant_id", "event_time_us"])
    op.create_table(
        "transfers",
        sa.Column("seq", SEQUENCE, nullable=False),
        sa.Column("id", sa.String(length=160), nullable=False),
        sa.Column("transaction_id", sa.String(length=128), nullable=False),
        sa.Column("debit_account_id", sa.String(length=64), nullable=False),
        sa.Column("credit_account_id", sa.String(length=64), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("reverses_id", sa.String(length=160), nullable=True),
        sa.Column("event_time_us", sa.BigInteger(), nullable=False),
        sa.Column("booked_at_us", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_nano > 0", name="ck_transfers_positive"),
        sa.CheckConstraint(
            "debit_account_id <> credit_account_id", name="ck_transfers_two_accounts"
        ),
        sa.ForeignKeyConstraint(
            ["credit_account_id"], ["accounts.id"], name="fk_transfers_credit_account_id"
        ),
        sa.ForeignKeyConstraint(
            ["debit_account_id"], ["accounts.id"], name="fk_transfers_debit_account_id"
        ),
        sa.ForeignKeyConstraint(["request_id"], ["requests.id"], name="fk_transfers_request_id"),
        sa.ForeignKeyConstraint(["reverses_id"], ["transfers.id"], name="fk_transfers_reverses_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_transfers"),
        sa.UniqueConstraint("id", name="uq_transfers_id"),
    )
    op.create_index("ix_transfers_request", "transfers", ["request_id"])
    op.create_index("ix_transfers_transaction", "transfers", ["transaction_id"])


def _create_api() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("last_four", sa.String(length=4), nullable=False),
        sa.Column("test_mode", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at_us", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at_us", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(tenant_id IS NULL) = (role IN ('operator', 'reviewer'))",
            name="ck_api_keys_role_scope",
        ),
        sa.CheckConstraint(
            "role IN ('owner', 'finance', 'developer', 'operator', 'reviewer')",
            name="ck_api_keys_role",
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_api_keys_tenant_id"),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("secret_sha256", name="uq_api_keys_secret_sha256"),
    )
    op.create_table(
        "audit_log",
        sa.Column("seq", SEQUENCE, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("subject", sa.String(length=128), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_tenant", "audit_log", ["tenant_id", "seq"])
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("route", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name="fk_idempotency_keys_request_id"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_idempotency_keys_tenant_id"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "route", "key", name="pk_idempotency_keys"),
    )
    op.create_table(
        "rate_windows",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("minute", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_rate_windows_key_id"),
        sa.PrimaryKeyConstraint("key_id", "minute", name="pk_rate_windows"),
    )
