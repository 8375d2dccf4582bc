"""A month to fill and to close, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from billing_world import add_tenant, settlement
from invoice_world import Month, priced
from sqlalchemy import Engine

from metering.database import transaction


@pytest.fixture
def month(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    """`ten_1` pays 1 a million tokens in and 4 out, and has credit for all of it."""
    made = Month(database, settlement(tmp_path), monkeypatch)
    with transaction(database) as connection:
        made.settlement._signer.register(connection)
        add_tenant(connection, credit="1000", pays=priced())
    return made
