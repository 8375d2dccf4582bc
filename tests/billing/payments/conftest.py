"""A tenant that pays through Stripe, and a Stripe to pay through, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from billing_world import add_tenant, settlement
from invoice_world import Month, at, priced
from sqlalchemy import Engine
from stripe_process import StripeProcess, running

from billing.payments import collection
from metering.database import transaction


@pytest.fixture(scope="module")
def stripe_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StripeProcess]:
    with running(tmp_path_factory.mktemp("stripe")) as process:
        yield process


@pytest.fixture
def stripe(stripe_server: StripeProcess) -> StripeProcess:
    """The fake, empty."""
    stripe_server.act("reset")
    return stripe_server


@pytest.fixture
def month(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    """`ten_1` pays on account, and through Stripe."""
    made = Month(database, settlement(tmp_path), monkeypatch)
    with transaction(database) as connection:
        made.settlement._signer.register(connection)
        add_tenant(connection, credit="1000", pays=priced())
        collection.enrol(connection, "ten_1", "pay@acme.example", "USD")
    made.now_us = at("2026-11-02 00:00")
    return made
