"""Tenants, as their records need them."""

from __future__ import annotations

from sqlalchemy import Engine, insert

from metering import queries
from metering.database import snapshot, transaction
from metering.queries import TenantRow
from metering.tables import tenants


def test_a_tenant_is_read_with_its_currency_and_time_zone(database: Engine) -> None:
    with transaction(database) as connection:
        connection.execute(
            insert(tenants).values(
                id="ten_1",
                name="Acme",
                currency="EUR",
                time_zone="Europe/Berlin",
                review_opt_in=False,
                review_delivery="now",
                suspended=False,
                created_at_us=0,
            )
        )
    with snapshot(database) as connection:
        assert queries.tenant(connection, "ten_1") == TenantRow(
            "ten_1", "Acme", "EUR", "Europe/Berlin"
        )
        assert queries.tenant(connection, "ten_2") is None
