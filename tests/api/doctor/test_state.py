"""What the gateway keeps is found sound, or the remedy is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import text
from tiny_models import write_tiny_dfm

from api import migrate
from api.doctor import state
from api.doctor.findings import Level
from api.errors import SchemaMismatch
from engine.config import EngineConfig
from engine.dfm.header import read_header
from metering.database import open_database, transaction


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dfm(tmp_path_factory.mktemp("doctor") / "tiny.dfm")


def test_a_whole_model_is_verified(model_file: Path, tmp_path: Path) -> None:
    header, finding = state.model(tmp_path, str(model_file))
    assert finding.level is Level.OK
    assert header == read_header(model_file)


def test_a_missing_model_is_fetched_with_one_command(tmp_path: Path) -> None:
    header, finding = state.model(tmp_path, "smollm2-135m-instruct")
    assert header is None
    assert (finding.level, finding.advice) == (Level.WARN, "dflash pull smollm2-135m-instruct")


def test_a_tampered_model_fails(model_file: Path, tmp_path: Path) -> None:
    tampered = tmp_path / "tampered.dfm"
    content = bytearray(model_file.read_bytes())
    content[-1] ^= 1
    tampered.write_bytes(content)
    header, finding = state.model(tmp_path, str(tampered))
    assert header is None
    assert finding.level is Level.FAIL
    assert "checksum" in finding.found


@pytest.mark.parametrize(
    ("factor", "level"), [(None, Level.OK), (0.5, Level.FAIL), (1, Level.OK), (3, Level.WARN)]
)
def test_longest_token_length_covers_the_context_as_a_power_of_two(
    factor: float | None, level: Level, model_file: Path
) -> None:
    header = read_header(model_file)
    context = header.model.architecture.context_length
    longest = None if factor is None else int(context * factor)
    finding = state.context_length(EngineConfig(longest_token_length=longest), header)
    assert finding.level is level


def test_a_limit_without_a_model_is_left_open() -> None:
    finding = state.context_length(EngineConfig(longest_token_length=4096), None)
    assert finding.level is Level.WARN


def test_a_migrated_database_passes(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url)
    assert state.database(blank_database_url).level is Level.OK


def test_an_empty_database_asks_to_be_migrated(blank_database_url: str) -> None:
    finding = state.database(blank_database_url)
    assert (finding.level, finding.advice) == (Level.WARN, "dflash migrate")


def test_a_newer_releases_database_is_not_to_be_migrated(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url)
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'tomorrow'"))
    database.dispose()
    finding = state.database(blank_database_url)
    assert finding.level is Level.FAIL
    assert finding.advice == "install the newer release that has migrated it"
    for change in (migrate.upgrade, migrate.downgrade):
        with pytest.raises(SchemaMismatch, match="at tomorrow, which this release does not know"):
            change(blank_database_url)
    assert migrate.check(blank_database_url).current == "tomorrow"


def test_a_database_file_that_cannot_be_read_is_no_servers_fault(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_text("no database")
    finding = state.database(f"sqlite:///{tmp_path / 'gateway.db'}")
    assert finding.level is Level.FAIL
    assert finding.advice is not None
    assert "server" not in finding.advice


def test_a_server_that_is_not_there_fails_with_its_reason() -> None:
    finding = state.database("postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=2")
    assert finding.level is Level.FAIL
    assert "refused" in finding.found


@pytest.mark.parametrize(("mode", "level"), [(0o600, Level.OK), (0o644, Level.FAIL)])
def test_the_signing_key_is_for_its_owner_alone(mode: int, level: Level, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    os.chmod(key, mode)
    assert state.signing_key(key).level is level


def test_no_signing_key_yet_is_fine(tmp_path: Path) -> None:
    assert state.signing_key(tmp_path / "none").level is Level.OK
