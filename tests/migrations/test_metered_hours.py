"""What Stripe's meters were told stays told, and may come to less than its rollup afterwards."""

from __future__ import annotations

from sqlalchemy import Engine, text

from api import migrate
from metering.database import open_database, snapshot, transaction

BEFORE = (
    "INSERT INTO tenants (id, name, currency, time_zone, review_opt_in, review_delivery, suspended,"
    " created_at_us) VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)",
    "INSERT INTO payment_meters VALUES ('t', 'requests', 'event', 0)",
    "INSERT INTO payment_metered VALUES ('t', 'requests', 0, 7), ('t', 'requests', 3600, 9)",
)


def told(database: Engine) -> list[tuple[int, ...]]:
    query = text("SELECT * FROM payment_metered ORDER BY start_us")
    with snapshot(database) as connection:
        return [tuple(row[2:]) for row in connection.execute(query)]


def test_hours_told_before_are_as_they_were_and_hours_of_nothing_are_kept(
    blank_database_url: str,
) -> None:
    migrate.upgrade(blank_database_url, "summaries")
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        for statement in BEFORE:
            connection.execute(text(statement))
    database.dispose()  # whoever has it open is stopped for a migration
    migrate.upgrade(blank_database_url, "metered_hours")
    assert told(database) == [(0, 7, 7), (3600, 9, 9)]
    with transaction(database) as connection:
        connection.execute(text("INSERT INTO payment_metered VALUES ('t', 'requests', 7200, 0, 4)"))
    database.dispose()
    migrate.downgrade(blank_database_url, "summaries")
    assert told(database) == [(0, 7), (3600, 9)]
    database.dispose()
