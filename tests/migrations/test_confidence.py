"""Reviews from before opinions existed had one, their reviewer's, and are known by who paid."""

from __future__ import annotations

from sqlalchemy import text

from api import migrate
from metering.database import open_database, snapshot, transaction

TENANT = "INSERT INTO tenants VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)"
ACCOUNT = "INSERT INTO accounts VALUES ('t:{0}:EUR', 't', '{0}', 'EUR', 0, 0)"
REQUEST = (
    "INSERT INTO requests (id, tenant_id, key_id, model, route, tariff_version_id, status,"
    " parameters, input_tokens, max_tokens, test_mode, started_at_us)"
    " VALUES ('{0}', 't', 'k', 'm', 'generate', 'v', 'completed', '{{}}', 1, 1, false, 1)"
)
FEE = (
    "INSERT INTO transfers (seq, id, transaction_id, debit_account_id, credit_account_id,"
    " amount_nano, currency, kind, request_id, event_time_us, booked_at_us)"
    " VALUES ({0}, '{1}/review_fee', '{1}', 't:{2}:EUR', 't:review_pool:EUR', 5, 'EUR', 'x',"
    " '{1}', 1, 1)"
)
ITEM = (
    "INSERT INTO review_items (id, request_id, tenant_id, rule_version, reason, fee_nano, currency,"
    " state, claim_token, verdict, note, resolved_by, queued_at_us, due_at_us, resolved_at_us)"
    " VALUES ('rev_{0}', '{0}', 't', 'review/1', 'x', 5, 'EUR', '{1}', 2, {2}, {3}, {4}, 1, 9, {5})"
)


def test_earlier_reviews_keep_their_verdict_and_their_payer(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url, "payments")
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        statements = [TENANT]
        statements += [ACCOUNT.format(kind) for kind in ("holds", "earnings", "review_pool")]
        statements += [REQUEST.format(name) for name in ("open", "done")]
        statements += [
            FEE.format(1, "open", "earnings"),
            FEE.format(2, "done", "holds"),
            ITEM.format("open", "queued", "NULL", "NULL", "NULL", "NULL"),
            ITEM.format("done", "resolved", "'reject'", "'why'", "'key_1'", "7"),
        ]
        for statement in statements:
            connection.execute(text(statement))
    migrate.upgrade(blank_database_url)
    with snapshot(database) as connection:
        items = connection.execute(
            text("SELECT id, paid_by, opinions, delivery FROM review_items ORDER BY id")
        ).all()
        opinions = connection.execute(
            text(
                "SELECT item_id, number, reviewer_id, claim_token, verdict, note, given_at_us"
                " FROM review_opinions"
            )
        ).all()
    assert [tuple(row) for row in items] == [
        ("rev_done", "tenant", 1, "now"),
        ("rev_open", "operator", 0, "now"),
    ]
    assert [tuple(row) for row in opinions] == [("rev_done", 1, "key_1", 2, "reject", "why", 7)]
    database.dispose()
