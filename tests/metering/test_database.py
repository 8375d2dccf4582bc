"""What a commit waits for, and what becomes of one whose answer was lost on its way."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from metering import database as door
from metering.database import snapshot, transaction
from metering.tables import engine_counters


def count(connection: Any) -> None:
    connection.execute(
        engine_counters.insert().values(
            engine_epoch="one",
            steps=1,
            blocks=0,
            tokens=0,
            withheld_tokens=0,
            updated_at_us=0,
        )
    )


def counted(database: Engine) -> int:
    with snapshot(database) as connection:
        return connection.scalar(select(func.count()).select_from(engine_counters)) or 0


class Line:
    """A connection to the server that breaks at the next commit."""

    def __init__(self, database: Engine, monkeypatch: pytest.MonkeyPatch, *, reached: bool) -> None:
        self._commit = database.dialect.do_commit
        self._reached = reached
        self.broken = False
        monkeypatch.setattr(database.dialect, "do_commit", self._break)

    def _break(self, connection: Any) -> None:
        if self.broken:
            self._commit(connection)
            return
        self.broken = True
        if self._reached:
            self._commit(connection)
        connection.driver_connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


def test_a_commit_whose_answer_was_lost_is_known_to_have_happened(
    postgres_database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(postgres_database, monkeypatch, reached=True)
    with transaction(postgres_database) as connection:
        count(connection)
    assert line.broken
    assert counted(postgres_database) == 1


def test_a_commit_that_never_reached_the_server_is_an_error(
    postgres_database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(postgres_database, monkeypatch, reached=False)
    lost = pytest.raises(DBAPIError, match="closed the connection")
    with lost, transaction(postgres_database) as connection:
        count(connection)
    assert line.broken
    assert counted(postgres_database) == 0


def test_a_commit_of_which_the_server_says_nothing_is_an_error(
    postgres_database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "ASKED_S", 0.0)
    Line(postgres_database, monkeypatch, reached=True)
    with pytest.raises(DBAPIError), transaction(postgres_database) as connection:
        count(connection)


def test_an_error_of_the_writer_is_never_taken_for_one_of_the_commit(database: Engine) -> None:
    with transaction(database) as connection:
        count(connection)
    with pytest.raises(DBAPIError), transaction(database) as connection:
        count(connection)
    assert counted(database) == 1


def opened(database: Engine) -> Any:
    """What a transaction of this moment is written by."""
    with transaction(database) as connection:
        return connection.connection.dbapi_connection


def test_writers_of_one_sqlite_file_take_turns_with_one_connection(
    sqlite_database: Engine,
) -> None:
    first = opened(sqlite_database)
    with snapshot(sqlite_database) as reader:
        assert reader.connection.dbapi_connection is not first
        assert opened(sqlite_database) is first
    with suppress(ZeroDivisionError), transaction(sqlite_database) as connection:
        count(connection)
        raise ZeroDivisionError
    assert counted(sqlite_database) == 0
    assert opened(sqlite_database) is first, "one that was rolled back is as good as before"


def test_a_connection_that_failed_is_not_written_by_again(sqlite_database: Engine) -> None:
    opened(sqlite_database).close()
    with pytest.raises(DBAPIError):
        opened(sqlite_database)
    with transaction(sqlite_database) as connection:
        count(connection)
    assert counted(sqlite_database) == 1


def test_a_statement_after_its_transaction_locks_nobody_out(sqlite_database: Engine) -> None:
    with transaction(sqlite_database) as connection:
        late = connection
    late.execute(text("SELECT 1"))
    with suppress(InvalidRequestError), transaction(sqlite_database):
        pass
    with transaction(sqlite_database) as connection:
        assert connection.scalar(text("SELECT 2")) == 2


def test_who_waits_too_long_for_a_turn_is_told_and_hangs_nowhere(
    sqlite_database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "BUSY_TIMEOUT_MS", 10)
    with transaction(sqlite_database) as connection:
        count(connection)
        with pytest.raises(DBAPIError, match="locked"):
            opened(sqlite_database)
    assert counted(sqlite_database) == 1
    with transaction(sqlite_database) as connection:
        connection.execute(engine_counters.delete())
    assert counted(sqlite_database) == 0


def test_a_file_that_is_let_go_of_is_closed_and_opened_again_when_it_is_asked_for(
    sqlite_database: Engine,
) -> None:
    log = Path(f"{sqlite_database.url.database}-wal")
    with transaction(sqlite_database) as connection:
        count(connection)
    assert log.exists()
    sqlite_database.dispose()
    assert not log.exists(), "whoever closes it last takes its log away"
    assert counted(sqlite_database) == 1
    with transaction(sqlite_database) as connection:
        connection.execute(engine_counters.delete())
    assert counted(sqlite_database) == 0


def waits_for_disk(connection: Connection) -> bool:
    """Whether a commit of this transaction returns only once the disk has it."""
    if connection.dialect.name == "sqlite":
        return bool(connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2)
    return bool(connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() != "off")


@pytest.fixture
def waiting(database: Engine) -> Engine:
    """As servers are set up: those of the tests would not wait for the disk at all."""
    if database.dialect.name == "postgresql":
        name = database.url.database
        with database.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET synchronous_commit = on')
        database.dispose()
    return database


def test_only_a_transaction_that_need_not_last_by_itself_does_not_wait(waiting: Engine) -> None:
    for durable in (True, False, True):
        with transaction(waiting, durable=durable) as connection:
            # A server may fail without us: what we know must not be ahead of what it has.
            assert waits_for_disk(connection) is (durable or waiting.dialect.name == "postgresql")
    with transaction(waiting) as connection:
        assert waits_for_disk(connection)
