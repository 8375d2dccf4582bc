"""What tax a customer had is in force from ever, and the last one is what an older version has."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import text

from api import migrate
from billing.invoices import parties
from metering.database import open_database, snapshot, transaction

TENANT = (
    "INSERT INTO tenants (id, name, currency, time_zone, review_opt_in, review_delivery, suspended,"
    " created_at_us) VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)"
)
CUSTOMER = "INSERT INTO invoice_customers VALUES ('t', 'Acme', '1 Way', 'X1', 'USt', '19')"


def test_a_tax_set_before_holds_from_ever_and_the_last_one_is_kept(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url, "lineages")
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        connection.execute(text(TENANT))
        connection.execute(text(CUSTOMER))
    database.dispose()  # whoever has it open is stopped for a migration
    migrate.upgrade(blank_database_url, "taxed_from")
    found = parties.Customer("Acme", "1 Way", "X1", "USt", Decimal(19))
    with transaction(database) as connection:
        assert parties.customer(connection, "t", 0) == found
        changed = parties.Customer("Acme", "1 Way", "X1", "USt", Decimal(20))
        parties.set_customer(connection, "t", changed, taxed_from_us=10)
        assert parties.customer(connection, "t", 9) == found
    database.dispose()
    migrate.downgrade(blank_database_url, "lineages")
    with snapshot(database) as connection:
        rows = connection.execute(text("SELECT * FROM invoice_customers")).all()
    assert [tuple(row) for row in rows] == [("t", "Acme", "1 Way", "X1", "USt", "20")]
    database.dispose()
