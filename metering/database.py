"""The one door to the database: SQLite (embedded, WAL) or PostgreSQL, from the same code.

Writers open `transaction`, readers `snapshot`; nothing below the caller commits. SQLite writers
take the write lock at BEGIN, because a deferred transaction that upgrades fails at once with
SQLITE_BUSY however long the busy timeout is. Those of one process take turns with one connection:
a lock wakes them at once, where SQLite would have them sleep, and look again.

A connection to PostgreSQL that breaks while it commits leaves open whether it did, and whoever
wrote it again would write it twice. So the server is asked, and nobody above has to know.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

BUSY_TIMEOUT_MS = 10_000
ASKED_S = 5.0  # for how long a server that lost a commit's answer is asked what became of it
ASK_AGAIN_S = 0.05


def open_database(url: str) -> Engine:
    """Open a database by SQLAlchemy URL (`sqlite:///path` or `postgresql+psycopg://...`)."""
    database = create_engine(
        url,
        pool_pre_ping=not url.startswith("sqlite"),
        hide_parameters=True,  # prompts and hashes are nothing for an error log
    )
    if database.dialect.name == "sqlite":
        writer = _Writer()
        database.update_execution_options(dflash_writer=writer)
        event.listen(database, "connect", _configure_sqlite)
        event.listen(database, "begin", _begin_sqlite)
        event.listen(database, "engine_disposed", writer.close)
    return database


@contextmanager
def transaction(database: Engine, *, durable: bool = True) -> Iterator[Connection]:
    """A write transaction: commits at the end of the block, rolls back on any exception.

    One that is not `durable` doesn't wait for the disk. It is there for everybody at once, and
    for good as soon as any later one waits; should the machine fail before, it never was. That is
    for SQLite alone: a server may fail without us, and we would go on from what it has forgotten.
    """
    with _connection(database) as connection:
        writer = connection.execution_options(dflash_write=True, dflash_durable=durable)
        number, is_written = None, False
        try:
            with writer.begin():
                number = _begin_numbered(writer)
                yield writer
                is_written = True
        except DBAPIError:
            # Once all is written, only the commit can have failed.
            if not is_written or number is None or not _is_committed(database, number):
                raise


@contextmanager
def snapshot(database: Engine) -> Iterator[Connection]:
    """A read-only transaction; what is read inside belongs to one state of the database."""
    with database.connect() as connection:
        reader = connection
        if database.dialect.name == "postgresql":
            reader = connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        with reader.begin():
            yield reader


# In one message, which takes no longer than the first alone.
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_current_xact_id()"
_STATUS = text("SELECT pg_xact_status(CAST(:number AS xid8))")


def _begin_numbered(connection: Connection) -> str | None:
    """Begin on PostgreSQL, and say by what number it knows this transaction; null elsewhere.

    Null as well where that fails: the block's first statement says what is wrong.
    """
    if connection.dialect.name != "postgresql":
        return None
    driver: Any = connection.connection.driver_connection
    try:
        number: bytes | None = driver.pgconn.exec_(_BEGIN).get_value(0, 0)
    except connection.dialect.loaded_dbapi.Error:
        return None
    return None if number is None else number.decode()


def _is_committed(database: Engine, number: str) -> bool:
    """What became of a transaction whose answer was lost; false where nobody can say either."""
    deadline_s = time.monotonic() + ASKED_S
    while time.monotonic() < deadline_s:
        try:
            with database.connect() as connection:
                status = connection.scalar(_STATUS, {"number": number})
        except DBAPIError:
            status = None  # it may be starting again
        if status in {"committed", "aborted"}:
            return bool(status == "committed")
        time.sleep(ASK_AGAIN_S)
    return False


def _connection(database: Engine) -> AbstractContextManager[Connection]:
    """One to write by: of several, or the only one where the database takes one writer."""
    writer: _Writer | None = database.get_execution_options().get("dflash_writer")
    return database.connect() if writer is None else writer.turn(database)


class _Writer:
    """The one connection by which a process writes to an SQLite file, and whose turn it is.

    It is kept, because what another has read of the file is outdated by every writer but itself,
    and because opening it anew takes longer than a commit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: Connection | None = None

    @contextmanager
    def turn(self, database: Engine) -> Iterator[Connection]:
        """The connection, to one at a time. Who waits too long tries at once, by another."""
        if not self._lock.acquire(timeout=BUSY_TIMEOUT_MS / 1000):
            with database.connect() as connection:
                yield connection
            return
        try:
            if self._kept is None:
                self._kept = database.connect()
                self._kept.detach()  # from its pool, so that closing it closes the file
            yield self._kept
        except DBAPIError:
            self._drop()  # whatever has become of it
            raise
        finally:
            if self._kept is not None and self._kept.in_transaction():
                self._drop()  # the next writer could not begin, and others would be locked out
            self._lock.release()

    def close(self, _database: Engine) -> None:
        """Close the file until somebody writes again; who writes just now keeps it open."""
        if self._lock.acquire(timeout=BUSY_TIMEOUT_MS / 1000):
            self._drop()
            self._lock.release()

    def _drop(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


def _configure_sqlite(dbapi_connection: Any, _record: Any) -> None:
    dbapi_connection.isolation_level = None  # BEGIN is ours
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    opened: Any = connection.connection.dbapi_connection
    write, durable = options.get("dflash_write", False), options.get("dflash_durable", True)
    begin = "BEGIN IMMEDIATE" if write else "BEGIN"
    try:
        if write:
            opened.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        opened.execute(begin)  # a third of what it takes by way of SQLAlchemy
    except sqlite3.Error as error:
        raise DBAPIError.instance(begin, None, error, sqlite3.Error) from error
