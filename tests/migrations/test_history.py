"""One line of history that upgrades and downgrades alike on both databases, to what code expects.

The reference is a database made from the metadata: migrated and made schemas are reflected and
compared whole, check constraints and triggers among them, which Alembic's own comparison omits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, MetaData, inspect, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.schema import DropTable

import api.limit_tables
import api.tables
import api.webhook_tables
import billing.charged_tables
import billing.credit_tables
import billing.invoices.tables
import billing.payments.tables
import billing.retention_tables
import billing.review_tables
import billing.tables
import metering.calibration_tables
import metering.ingest_tables
import metering.tables
from api import migrate
from billing import credit_triggers, request_triggers, review_triggers, triggers, verdict_triggers
from billing.invoices import triggers as invoice_triggers
from billing.payments import triggers as payment_triggers
from metering.database import open_database, snapshot, transaction

TENANT = (
    "INSERT INTO tenants (id, name, currency, time_zone, review_opt_in, review_delivery, suspended,"
    " created_at_us) VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)"
)
ENTRY = (
    "INSERT INTO audit_log (seq, at_us, actor, action, subject, detail)"
    " VALUES (1, 1, 'cli', 'a', 's', '{}')"
)


@pytest.fixture
def migrated(blank_database_url: str) -> Iterator[Engine]:
    migrate.upgrade(blank_database_url)
    database = open_database(blank_database_url)
    yield database
    database.dispose()


def triggers_of(connection: Connection) -> set[str]:
    if connection.dialect.name == "sqlite":
        query = "SELECT name || ' ' || sql FROM sqlite_master WHERE type = 'trigger'"
    else:
        query = "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal"
    return {" ".join(row) for row in connection.execute(text(query))}


def functions_of(connection: Connection) -> list[str]:
    if connection.dialect.name == "sqlite":
        return []
    query = "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    return list(connection.execute(text(query)).scalars())


def schema_of(connection: Connection) -> dict[str, Any]:
    inspector = inspect(connection)
    return {
        table: {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(table)
            ],
            "key": inspector.get_pk_constraint(table),
            "foreign": ordered(inspector.get_foreign_keys(table)),
            "unique": ordered(inspector.get_unique_constraints(table)),
            "checks": ordered(inspector.get_check_constraints(table)),
            "indexes": ordered(inspector.get_indexes(table)),
        }
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def ordered(parts: list[Any]) -> list[str]:
    return sorted(json.dumps(part, sort_keys=True, default=str) for part in parts)


def declared_tables() -> MetaData:
    """One MetaData of all packages' tables; a copy, because Alembic's comparison edits it."""
    together = MetaData()
    for package in (metering, billing, api):
        for table in package.tables.metadata.sorted_tables:
            table.to_metadata(together)
    return together


def test_a_migrated_schema_is_the_one_the_tables_declare(migrated: Engine) -> None:
    with snapshot(migrated) as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, declared_tables()) == []


def test_a_migrated_schema_equals_one_made_from_the_tables(blank_database_url: str) -> None:
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        for package in (metering, billing, api):
            package.tables.metadata.create_all(connection)
        triggers.install(connection)
        invoice_triggers.install(connection)
        payment_triggers.install(connection)
        for declared_triggers in (
            credit_triggers,
            request_triggers,
            review_triggers,
            verdict_triggers,
        ):
            for statement in declared_triggers.create(connection.dialect.name):
                connection.exec_driver_sql(statement)
        declared, refusals = schema_of(connection), triggers_of(connection)
        for table in reversed(declared_tables().sorted_tables):
            connection.execute(DropTable(table))
        for name in functions_of(connection):
            connection.execute(text(f"DROP FUNCTION {name}"))
    migrate.upgrade(blank_database_url)
    with snapshot(database) as connection:
        assert schema_of(connection) == declared
        assert triggers_of(connection) >= refusals
    database.dispose()


def test_downgrading_to_base_leaves_nothing_behind(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url)
    assert migrate.downgrade(blank_database_url).current is None
    database = open_database(blank_database_url)
    with snapshot(database) as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
        assert triggers_of(connection) == set()
        assert functions_of(connection) == []
    database.dispose()


def test_history_can_be_walked_down_and_up_again(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url)
    migrate.downgrade(blank_database_url)
    assert migrate.upgrade(blank_database_url).is_current


def test_upgrading_twice_changes_nothing(migrated: Engine, blank_database_url: str) -> None:
    with transaction(migrated) as connection:
        connection.execute(text(TENANT))
    assert migrate.upgrade(blank_database_url) == migrate.state(migrated)
    with snapshot(migrated) as connection:
        assert connection.execute(text("SELECT count(*) FROM tenants")).scalar_one() == 1


def test_gateways_that_start_together_migrate_once(blank_database_url: str) -> None:
    with ThreadPoolExecutor(4) as starts:
        states = list(starts.map(migrate.upgrade, [blank_database_url] * 4))
    assert all(state.is_current for state in states)


def test_what_was_logged_can_be_neither_changed_nor_removed(migrated: Engine) -> None:
    with transaction(migrated) as connection:
        connection.execute(text(ENTRY))
    for statement in ("UPDATE audit_log SET actor = 'me'", "DELETE FROM audit_log"):
        with pytest.raises(DatabaseError, match="append-only"), transaction(migrated) as connection:
            connection.execute(text(statement))


@pytest.mark.parametrize(
    "table",
    [
        "transfers",
        "rated_lines",
        "receipts",
        "adjustments",
        "audit_log",
        "usage_events",
        "request_summaries",
        "invoice_payments",
        "credit_notes",
        "review_payouts",
        "calibrations",
        "review_opinions",
        "confidence_labels",
        "meter_windows",
    ],
)
def test_every_record_table_is_guarded(migrated: Engine, table: str) -> None:
    with snapshot(migrated) as connection:
        texts = [trigger.replace("public.", "") for trigger in triggers_of(connection)]
    for action in ("UPDATE", "DELETE"):
        assert sum(f" BEFORE {action} ON {table} FOR EACH ROW " in text for text in texts) > 0


def test_a_missing_sqlite_file_is_not_created_by_asking(tmp_path: Path) -> None:
    state = migrate.check(f"sqlite:///{tmp_path / 'none.db'}")
    assert state.current is None
    assert not state.is_current
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_new_sqlite_file_is_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'var' / 'gateway.db'}"
    assert migrate.upgrade(url) == migrate.check(url)
