"""No statement replaces rows of a guarded table or empties it, whoever asks.

Which tables those are is asked of the database: one with a trigger is guarded, whoever made it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from api import migrate
from metering.database import transaction

# Where other guards leave a row open to change: the narrowest place for this one.
OPEN = {"holds": {"state": "pending"}, "invoices": {"state": "draft"}}


@pytest.fixture
def outsider(sqlite_url: str) -> Iterator[sqlite3.Connection]:
    """A connection as anybody opens one, with two rows in each guarded table."""
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for table in guarded(connection):
            fill(connection, table)
        connection.commit()
        yield connection


def guarded(connection: sqlite3.Connection) -> list[str]:
    query = "SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger' ORDER BY 1"
    return [table for (table,) in connection.execute(query)]


def keys(connection: sqlite3.Connection, table: str) -> list[list[str]]:
    """The columns of each key of a table, its rows' own number among them where it has one."""
    unique = [name for _, name, unique, *_ in indexes(connection, table) if unique]
    columns = [connection.execute(f"PRAGMA index_info({name})").fetchall() for name in unique]
    numbered = [] if without_number(connection, table) else [["rowid"]]
    return [*numbered, *([column for _, _, column in each] for each in columns)]


def without_number(connection: sqlite3.Connection, table: str) -> bool:
    return bool(connection.execute(f"SELECT wr FROM pragma_table_list('{table}')").fetchone()[0])


def indexes(connection: sqlite3.Connection, table: str) -> list[tuple[int, str, bool]]:
    return connection.execute(f"PRAGMA index_list({table})").fetchall()


def fill(
    connection: sqlite3.Connection,
    table: str,
    numbers: Iterable[int] = (1, 2),
    insert: str = "INSERT",
) -> None:
    keyed = {column for key in keys(connection, table) for column in key}
    for number in numbers:
        row = {
            name: number if "INT" in kind else f"{name} {number}"
            for _, name, kind, required, _, _ in connection.execute(f"PRAGMA table_info({table})")
            if required or name in keyed
        } | OPEN.get(table, {})
        names = ", ".join(f'"{name}"' for name in row)
        marks = ", ".join("?" * len(row))
        connection.execute(f"{insert} INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def rows(connection: sqlite3.Connection, table: str) -> list[tuple[object, ...]]:
    return connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()


def test_no_insert_replaces_a_row_of_a_guarded_table(outsider: sqlite3.Connection) -> None:
    tables = guarded(outsider)
    assert {"transfers", "rated_lines", "receipts", "audit_log", "usage_events"} <= set(tables)
    for table in tables:
        before = rows(outsider, table)
        assert len(before) == 2
        for statement in ("INSERT OR REPLACE", "REPLACE"):
            with pytest.raises(sqlite3.IntegrityError, match=f"^rows of {table} are never replac"):
                outsider.execute(f"{statement} INTO {table} SELECT * FROM {table}")
        assert rows(outsider, table) == before


def test_no_update_puts_a_row_of_a_guarded_table_in_anothers_place(
    outsider: sqlite3.Connection,
) -> None:
    for table in guarded(outsider):
        before = rows(outsider, table)
        for key in keys(outsider, table):
            taken = ", ".join(f"{name} = (SELECT min({name}) FROM {table})" for name in key)
            with pytest.raises(sqlite3.IntegrityError):
                outsider.execute(
                    f"UPDATE OR REPLACE {table} SET {taken}"
                    f" WHERE {key[-1]} = (SELECT max({key[-1]}) FROM {table})"
                )
            assert rows(outsider, table) == before


def test_a_row_that_is_there_is_still_skipped_or_named_as_it_was(
    outsider: sqlite3.Connection,
) -> None:
    for table in guarded(outsider):
        before = rows(outsider, table)
        for statement in (
            f"INSERT INTO {table} SELECT * FROM {table} WHERE true ON CONFLICT DO NOTHING",
            f"INSERT OR IGNORE INTO {table} SELECT * FROM {table}",
        ):
            assert outsider.execute(statement).rowcount == 0
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE constraint failed"):
            outsider.execute(f"INSERT INTO {table} SELECT * FROM {table}")
        assert rows(outsider, table) == before
    assert outsider.execute("SELECT * FROM replacements").fetchall() == []


@pytest.mark.parametrize("way", ["ABORT", "FAIL", "ROLLBACK"])
def test_a_new_row_is_written_plainly_and_refused_if_it_spells_out_another_way(
    outsider: sqlite3.Connection, way: str
) -> None:
    for table in guarded(outsider):
        with pytest.raises(sqlite3.IntegrityError, match="replacements"):
            fill(outsider, table, (3,), f"INSERT OR {way}")
        fill(outsider, table, (3,))
        assert len(rows(outsider, table)) == 3
        outsider.commit()


def test_no_guarded_table_is_emptied(postgres_database: Engine) -> None:
    with transaction(postgres_database) as connection:
        query = "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal"
        tables = list(connection.execute(text(query)).scalars())
        assert {"transfers", "rated_lines", "receipts", "audit_log", "usage_events"} <= set(tables)
        for table in tables:
            refused(connection, f"TRUNCATE {table} CASCADE", f"{table} is never emptied")
        # Nor along with what it refers to.
        refused(connection, "TRUNCATE tenants CASCADE", "is never emptied")


def refused(connection: Connection, statement: str, reason: str) -> None:
    with pytest.raises(IntegrityError, match=reason), connection.begin_nested():
        connection.execute(text(statement))


def test_both_databases_guard_the_same_tables(sqlite_url: str, postgres_database: Engine) -> None:
    with (
        closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection,
        transaction(postgres_database) as other,
    ):
        query = "SELECT DISTINCT tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal"
        assert set(guarded(connection)) == set(other.execute(text(query)).scalars())


def test_a_downgrade_allows_it_again(sqlite_url: str) -> None:
    migrate.downgrade(sqlite_url, "pinned_calibrations")
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        fill(connection, "audit_log")
        connection.execute("REPLACE INTO audit_log SELECT * FROM audit_log")
