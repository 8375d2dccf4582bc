"""The demo tenant is made once, found again by its key, and never runs dry."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from api import keys
from api.quickstart import demo
from billing.ledger.balances import balance
from billing.money import parse_nano
from metering.database import snapshot, transaction


def test_a_first_run_makes_a_tenant_with_credit_and_a_key(
    database: Engine, database_url: str, tmp_path: Path
) -> None:
    made = demo.prepare(database_url, tmp_path / "demo_key")
    with snapshot(database) as connection:
        principal = keys.authenticate(connection, made.key)
        assert principal is not None
        assert principal.tenant_id == made.tenant_id
        assert balance(connection, made.tenant_id).available_nano == parse_nano("5")


def test_a_second_run_finds_the_same_tenant_and_grants_nothing(
    database: Engine, database_url: str, tmp_path: Path
) -> None:
    first = demo.prepare(database_url, tmp_path / "demo_key")
    assert demo.prepare(database_url, tmp_path / "demo_key") == first
    with snapshot(database) as connection:
        assert balance(connection, first.tenant_id).available_nano == parse_nano("5")


def test_the_key_file_is_for_its_owner_alone(database_url: str, tmp_path: Path) -> None:
    made = demo.prepare(database_url, tmp_path / "demo_key")
    assert (tmp_path / "demo_key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "demo_key").read_text().strip() == made.key
    assert made.key not in repr(made)


def test_a_key_that_no_longer_lives_is_replaced(
    database: Engine, database_url: str, tmp_path: Path
) -> None:
    first = demo.prepare(database_url, tmp_path / "demo_key")
    with transaction(database) as connection:
        principal = keys.authenticate(connection, first.key)
        assert principal is not None
        keys.revoke(connection, principal.key_id)
    second = demo.prepare(database_url, tmp_path / "demo_key")
    assert second.tenant_id != first.tenant_id
    assert (tmp_path / "demo_key").read_text().strip() == second.key


def test_credit_is_topped_up_when_it_runs_low(
    database: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "CREDIT", parse_nano("0.5"))
    first = demo.prepare(database_url, tmp_path / "demo_key")
    monkeypatch.undo()
    demo.prepare(database_url, tmp_path / "demo_key")
    with transaction(database) as connection:
        assert balance(connection, first.tenant_id).available_nano == parse_nano("5.5")
