"""The one door to the database: SQLite (embedded, WAL) or PostgreSQL, from the same code.

Writers open `transaction`, readers `snapshot`; nothing below the caller commits. SQLite writers
take the write lock at BEGIN, because a deferred transaction that upgrades fails at once with
SQLITE_BUSY however long the busy timeout is. Those of one process wait for each other's lock, which
wakes them at once: SQLite would have them sleep, and look again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

BUSY_TIMEOUT_MS = 10_000

_locks: WeakKeyDictionary[Engine, threading.Lock] = WeakKeyDictionary()
_creating = threading.Lock()


def open_database(url: str) -> Engine:
    """Open a database by SQLAlchemy URL (`sqlite:///path` or `postgresql+psycopg://...`)."""
    database = create_engine(
        url,
        pool_pre_ping=not url.startswith("sqlite"),
        hide_parameters=True,  # prompts and hashes are nothing for an error log
    )
    if database.dialect.name == "sqlite":
        event.listen(database, "connect", _configure_sqlite)
        event.listen(database, "begin", _begin_sqlite)
    return database


@contextmanager
def transaction(database: Engine, *, durable: bool = True) -> Iterator[Connection]:
    """A write transaction: commits at the end of the block, rolls back on any exception.

    One that is not `durable` doesn't wait for the disk. It is there for everybody at once, and
    for good as soon as any later one waits; should the machine fail before, it never was.
    """
    with _turn(database), database.connect() as connection:
        writer = connection.execution_options(dflash_write=True, dflash_durable=durable)
        with writer.begin():
            if not durable and database.dialect.name == "postgresql":
                writer.exec_driver_sql("SET LOCAL synchronous_commit TO OFF")
            yield writer


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


@contextmanager
def _turn(database: Engine) -> Iterator[None]:
    """One writer at a time, where the database takes one only. Who waits too long tries at once."""
    if database.dialect.name != "sqlite":
        yield
        return
    with _creating:
        lock = _locks.setdefault(database, threading.Lock())
    has_turn = lock.acquire(timeout=BUSY_TIMEOUT_MS / 1000)
    try:
        yield
    finally:
        if has_turn:
            lock.release()


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
