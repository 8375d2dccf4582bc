"""Keys that were rotated earlier are of one lineage; reviewers' accounts stay whose they are."""

from __future__ import annotations

from sqlalchemy import Engine, text

from api import migrate
from metering.database import open_database, snapshot, transaction

TENANT = (
    "INSERT INTO tenants (id, name, currency, time_zone, review_opt_in, review_delivery, suspended,"
    " created_at_us) VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)"
)
KEY = (
    "INSERT INTO api_keys (id, tenant_id, name, role, secret_sha256, last_four, created_at_us)"
    " VALUES (:id, :tenant_id, 'k', :role, :id, 'abcd', 1)"
)
ROTATION = (
    "INSERT INTO audit_log (seq, at_us, actor, action, tenant_id, subject, detail)"
    " VALUES (:seq, 1, 'cli', 'key.rotated', :tenant_id, :subject, :detail)"
)
ROTATIONS = (("t", "a", "b"), (None, "r", "s"), ("t", "b", "c"), ("t", "a", "d"), (None, "o", "p"))


def kept(database: Engine, table: str) -> list[tuple[object, ...]]:
    with snapshot(database) as connection:
        return sorted(map(tuple, connection.execute(text(f"SELECT * FROM {table}"))))


def test_earlier_rotations_are_lineages_and_reviewers_keep_their_accounts(
    blank_database_url: str,
) -> None:
    migrate.upgrade(blank_database_url, "metered_hours")
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        connection.execute(text(TENANT))
        for name in "abcdrsp":
            tenant_id, role = ("t", "developer") if name in "abcd" else (None, "reviewer")
            connection.execute(text(KEY), {"id": name, "tenant_id": tenant_id, "role": role})
        connection.execute(text("INSERT INTO reviewer_keys VALUES ('s', 'r')"))
        for seq, (tenant_id, subject, successor) in enumerate(ROTATIONS, 1):
            detail = f'{{"overlap_s":0,"successor":"{successor}"}}'
            row = {"seq": seq, "tenant_id": tenant_id, "subject": subject, "detail": detail}
            connection.execute(text(ROTATION), row)
    database.dispose()  # whoever has it open is stopped for a migration
    migrate.upgrade(blank_database_url, "lineages")
    assert kept(database, "key_lineages") == [
        ("b", "a", 1),
        ("c", "a", 2),
        ("d", "a", 3),
        ("s", "r", 1),
    ]
    database.dispose()
    migrate.downgrade(blank_database_url, "metered_hours")
    assert kept(database, "reviewer_keys") == [("s", "r")]
    database.dispose()
