"""What a commit waits for, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, Engine

from metering.database import transaction


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
            assert waits_for_disk(connection) is durable
    with transaction(waiting) as connection:
        assert waits_for_disk(connection)
