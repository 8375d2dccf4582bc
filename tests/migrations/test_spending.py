"""What was paid before grants existed was paid from plain credit, and is known to be."""

from __future__ import annotations

from sqlalchemy import text

from api import migrate
from metering.database import open_database, snapshot, transaction

TENANT = "INSERT INTO tenants VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)"
ACCOUNT = "INSERT INTO accounts VALUES ('t:{0}:EUR', 't', '{0}', 'EUR', 0, 0)"
REQUEST = (
    "INSERT INTO requests (id, tenant_id, key_id, model, route, tariff_version_id, status,"
    " parameters, input_tokens, max_tokens, test_mode, started_at_us)"
    " VALUES ('{0}', 't', 'k', 'm', 'generate', 'v', 'running', '{{}}', 1, 1, false, 1)"
)
HOLD = (
    "INSERT INTO holds (request_id, tenant_id, currency, amount_nano, posted_nano, state,"
    " expires_at_us, created_at_us, resolved_at_us)"
    " VALUES ('{0}', 't', 'EUR', {1}, {2}, '{3}', 9, 1, {4})"
)
MOVE = (
    "INSERT INTO transfers (seq, id, transaction_id, debit_account_id, credit_account_id,"
    " amount_nano, currency, kind, request_id, event_time_us, booked_at_us)"
    " VALUES ({0}, 'm{0}', 'm{0}', 't:{1}:EUR', 't:{2}:EUR', {3}, 'EUR', 'x', '{4}', 1, 1)"
)


def test_earlier_holds_are_known_to_be_paid_from_credit(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url, "0001")
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        statements = [TENANT]
        statements += [ACCOUNT.format(kind) for kind in ("tenant_credit", "holds", "earnings")]
        statements += [REQUEST.format(name) for name in ("live", "paid", "free")]
        statements += [
            HOLD.format("live", 70, 0, "pending", "NULL"),
            HOLD.format("paid", 70, 30, "posted", "2"),
            HOLD.format("free", 70, 0, "voided", "2"),
            MOVE.format(1, "tenant_credit", "holds", 70, "live"),
            MOVE.format(2, "tenant_credit", "holds", 70, "paid"),
            MOVE.format(3, "holds", "earnings", 30, "paid"),
            MOVE.format(4, "holds", "tenant_credit", 40, "paid"),
            MOVE.format(5, "earnings", "tenant_credit", 12, "paid"),  # a refund
            MOVE.format(6, "tenant_credit", "holds", 70, "free"),
            MOVE.format(7, "holds", "tenant_credit", 70, "free"),
        ]
        for statement in statements:
            connection.execute(text(statement))
    migrate.upgrade(blank_database_url)
    with snapshot(database) as connection:
        found = connection.execute(
            text("SELECT request_id, source, amount_nano FROM fundings ORDER BY request_id")
        ).all()
    assert [tuple(row) for row in found] == [
        ("free", "credit", 0),
        ("live", "credit", 70),
        ("paid", "credit", 18),
    ]
    database.dispose()
