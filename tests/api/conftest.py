"""The clock of the gateway's tests, and others at the same database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_cases import HeldClock
from api_door import BeforeTheLock
from sqlalchemy import Engine

from metering.database import open_database


@pytest.fixture
def held_clock(monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    """The wall clock, standing still at the same moment in every test."""
    return HeldClock(monkeypatch)


@pytest.fixture
def elsewhere(database: Engine, database_url: str) -> Iterator[Engine]:
    """The same database, opened by another process."""
    other = open_database(database_url)
    yield other
    other.dispose()


@pytest.fixture
def before_the_lock(database: Engine, monkeypatch: pytest.MonkeyPatch) -> BeforeTheLock:
    return BeforeTheLock(database, monkeypatch)
