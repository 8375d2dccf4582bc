"""Bring a database to the schema this release expects, or say where it stands.

One line of history for SQLite and PostgreSQL. A step runs in one transaction, under a lock that
makes gateways starting together wait for each other instead of migrating twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import make_url

from api.errors import SchemaMismatch
from metering.database import open_database, snapshot, transaction

ADVISORY_LOCK = 0x64666C617368  # "dflash": any constant nobody else takes


@dataclass(frozen=True, slots=True)
class SchemaState:
    """Where a database stands in the history; `current` is null for an empty one."""

    current: str | None
    head: str
    is_known: bool = (
        True  # false where a newer release brought it to what this one has not heard of
    )

    @property
    def is_current(self) -> bool:
        """Whether the schema is the one this release was written for."""
        return self.current == self.head

    @property
    def mismatch(self) -> str:
        """What is to be said of a schema that is not current, with the remedy."""
        if self.is_known:
            return (
                f"the database is at {self.current}, this release needs {self.head}: "
                "run `dflash migrate`"
            )
        return (
            f"the database is at {self.current}, which this release does not know: "
            "a newer one has migrated it, so run that one"
        )


def upgrade(database_url: str, revision: str = "head") -> SchemaState:
    """Change the schema up to `revision`, creating the SQLite file where there is none.

    Idempotent; returns the state reached. Raises SchemaMismatch for a newer release's database.
    """
    return _run(database_url, lambda config: command.upgrade(config, revision))


def downgrade(database_url: str, revision: str = "base") -> SchemaState:
    """Change the schema back to `revision`, dropping the data of what is undone.

    Raises SchemaMismatch for a newer release's database.
    """
    return _run(database_url, lambda config: command.downgrade(config, revision))


def check(database_url: str) -> SchemaState:
    """Where the database stands. Changes nothing and creates no file."""
    url = make_url(database_url)
    if url.drivername.startswith("sqlite") and url.database and not Path(url.database).exists():
        return SchemaState(None, head())
    database = open_database(database_url)
    try:
        return state(database)
    finally:
        database.dispose()


def state(database: Engine) -> SchemaState:
    """Where an open database stands. Changes nothing."""
    with snapshot(database) as connection:
        return _state(connection)


def head() -> str:
    """The revision this release expects."""
    revision = ScriptDirectory(str(_scripts())).get_current_head()
    if revision is None:
        raise LookupError("this installation holds no migrations")
    return revision


def _run(database_url: str, step: Callable[[Config], None]) -> SchemaState:
    url = make_url(database_url)
    if url.drivername.startswith("sqlite") and url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    database = open_database(database_url)
    try:
        with transaction(database) as connection:
            if database.dialect.name == "postgresql":
                # Ends with the transaction; SQLite took its write lock at BEGIN.
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK}
                )
            found = _state(connection)
            if not found.is_known:
                raise SchemaMismatch(found.mismatch)
            config = Config()
            config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
            config.attributes["connection"] = connection
            step(config)
        return state(database)
    finally:
        database.dispose()


def _state(connection: Connection) -> SchemaState:
    current = MigrationContext.configure(connection).get_current_revision()
    history = ScriptDirectory(str(_scripts())).walk_revisions()
    known = {None, *(step.revision for step in history)}
    return SchemaState(current, head(), is_known=current in known)


def _scripts() -> Path:
    """The history: beside the packages, in a checkout as in an installed wheel."""
    beside = Path(__file__).parents[1]
    packaged = beside / "dflash_gateway_migrations"
    return packaged if packaged.is_dir() else beside / "migrations"
