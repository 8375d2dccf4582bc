"""The clock of the gateway's tests."""

from __future__ import annotations

import pytest
from api_cases import HeldClock


@pytest.fixture
def held_clock(monkeypatch: pytest.MonkeyPatch) -> HeldClock:
    """The wall clock, standing still at the same moment in every test."""
    return HeldClock(monkeypatch)
