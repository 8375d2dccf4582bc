"""One gateway per database: whoever recovers orphaned requests must be the only one to serve.

A second gateway would take the first one's live requests for orphans of a crash and end them.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError

from api.errors import AlreadyServed

ADVISORY_LOCK = 0x6466_7365_7276  # "dfserv": a session lock, which dies with its connection


class Tenure:
    """The exclusive right to serve a database, held until `release` or the process's death."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._descriptor: int | None = None
        self._is_held = False

    def take(self) -> None:
        """Take the right; raises AlreadyServed while another gateway has it."""
        taken = (
            self._take_session_lock()
            if self._database.dialect.name == "postgresql"
            else self._take_file_lock()
        )
        if not taken:
            self._let_go()
            raise AlreadyServed("another gateway serves this database; stop it first")
        self._is_held = True

    def keep(self) -> None:
        """Take the right anew where the connection that held it broke, as when a server fails.

        Raises AlreadyServed where another gateway was faster.
        """
        if not self._is_held or self._database.dialect.name != "postgresql":
            return
        with suppress(DBAPIError):
            if self._connection is not None:
                self._connection.scalar(text("SELECT 1"))
                return
        self._let_go()
        if not self._take_session_lock():
            self._let_go()
            raise AlreadyServed("another gateway took this database over")

    def release(self) -> None:
        """Give the right back; does nothing when it is not held."""
        self._is_held = False
        self._let_go()

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take_session_lock(self) -> bool:
        connection = self._database.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection = connection
        taken = connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": ADVISORY_LOCK})
        # A pooled connection would keep the lock after `close`.
        connection.detach()
        return bool(taken)

    def _take_file_lock(self) -> bool:
        file = self._database.url.database
        if not file or file == ":memory:":
            return True
        path = Path(file).with_name(Path(file).name + ".serving")
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
