from __future__ import annotations

import pytest
from billing_cases import STARTED_US

from metering import clock


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A wall clock that a test moves."""
    moment = {"us": STARTED_US}
    monkeypatch.setattr(clock, "now_us", lambda: moment["us"])
    return moment
