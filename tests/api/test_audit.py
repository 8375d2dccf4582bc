from __future__ import annotations

from api_cases import HeldClock, make_house
from sqlalchemy import Engine

from api import audit, tenants
from metering.database import snapshot, transaction


def test_a_line_keeps_who_what_whom_and_when(database: Engine, held_clock: HeldClock) -> None:
    tenant_id = make_house(database).tenant_id
    with transaction(database) as connection:
        audit.write(
            connection,
            actor="key_1",
            action="credit.granted",
            subject=tenant_id,
            tenant_id=tenant_id,
            amount_nano=10**9,
            reference="first",
        )
    with snapshot(database) as connection:
        [entry] = audit.entries(connection, limit=10)
    assert (entry.at_us, entry.actor, entry.action) == (
        held_clock.now_us,
        "key_1",
        "credit.granted",
    )
    assert entry.tenant_id == entry.subject == tenant_id
    assert entry.detail == {"amount_nano": 10**9, "reference": "first"}


def test_a_change_that_is_undone_leaves_no_line(sqlite_database: Engine) -> None:
    with sqlite_database.connect() as connection, connection.begin() as undone:
        audit.write(connection, actor="cli", action="key.revoked", subject="key_1")
        undone.rollback()
    with snapshot(sqlite_database) as connection:
        assert audit.entries(connection, limit=10) == []


def test_lines_are_read_newest_first_and_by_tenant(sqlite_database: Engine) -> None:
    with transaction(sqlite_database) as connection:
        even, odd = (tenants.create(connection, name=name).id for name in ("even", "odd"))
        for number in range(5):
            audit.write(
                connection,
                actor="cli",
                action="tenant.changed",
                subject=str(number),
                tenant_id=even if number % 2 == 0 else odd,
            )
    with snapshot(sqlite_database) as connection:
        newest = audit.entries(connection, limit=2)
        older = audit.entries(connection, limit=9, before=newest[-1].seq)
        found = audit.entries(connection, tenant_id=even, limit=9)
    assert [entry.subject for entry in (*newest, *older)] == ["4", "3", "2", "1", "0"]
    assert [entry.subject for entry in found] == ["4", "2", "0"]
