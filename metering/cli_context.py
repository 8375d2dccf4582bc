"""What the `dflash` command hands to its chapters, so that none of them reads the environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


def _no_provider() -> Any:
    """Where no payment provider is configured."""
    return None


def _unrecorded(*_args: object, **_entry: object) -> None:
    """Where there is no gateway above, there is no audit log to write to."""


@dataclass(frozen=True, slots=True)
class CliContext:
    """Where this installation keeps its state; click carries it as `ctx.obj`."""

    home: Path
    database_url: str
    # The gateway's audit log: (connection, *, action, subject, tenant_id=None, **detail).
    record: Callable[..., None] = _unrecorded
    # Opens the payment provider (`billing.payments.provider.Provider`); null where there is none.
    open_provider: Callable[[], Any] = _no_provider

    @contextmanager
    def database(self) -> Iterator[Engine]:
        """The installation's database, for as long as a command takes."""
        from metering.database import open_database

        database = open_database(self.database_url)
        try:
            yield database
        finally:
            database.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A write transaction on it, committed at the end."""
        from metering.database import transaction

        with self.database() as database, transaction(database) as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A consistent read of it."""
        from metering.database import snapshot

        with self.database() as database, snapshot(database) as connection:
            yield connection
