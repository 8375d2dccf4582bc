from __future__ import annotations

import json
from typing import Any

import pytest
from api_cases import HeldClock
from click.testing import CliRunner, Result
from sqlalchemy import Engine

from api import audit, keys
from api.errors import Conflict, InvalidParameter, NotFound
from api.roles import Role
from billing.catalogue import tariff_in_force
from billing.errors import InvalidEconomics
from dflash.cli import load
from metering import clock
from metering.cli_context import CliContext
from metering.database import snapshot


class Terminal:
    """Runs commands against one database."""

    def __init__(self, database_url: str, home: Any) -> None:
        self.context = CliContext(home=home, database_url=database_url)

    def run(self, name: str, *arguments: str) -> Result:
        return CliRunner().invoke(load(name), arguments, obj=self.context)

    def json(self, name: str, *arguments: str) -> dict[str, Any]:
        result = self.run(name, *arguments, "--json")
        if result.exception:
            raise result.exception
        return dict(json.loads(result.stdout.splitlines()[-1]))


@pytest.fixture
def terminal(sqlite_url: str, tmp_path: Any, held_clock: HeldClock) -> Terminal:
    return Terminal(sqlite_url, tmp_path)


def test_the_first_operator_key_is_printed_exactly_once(
    terminal: Terminal, sqlite_database: Engine
) -> None:
    result = terminal.run("admin", "bootstrap")
    assert result.exit_code == 0
    secret = result.stdout.splitlines()[-1]
    with snapshot(sqlite_database) as connection:
        principal = keys.authenticate(connection, secret)
    assert principal is not None
    assert principal.role is Role.OPERATOR
    again = terminal.run("admin", "bootstrap")
    assert again.exit_code != 0
    assert isinstance(again.exception, Conflict)
    assert "dfk_" not in again.output


def test_a_tenant_with_a_tariff_and_a_key_can_be_set_up_before_anything_serves(
    terminal: Terminal, sqlite_database: Engine
) -> None:
    tenant = terminal.json("tenant", "create", "Acme", "--tariff", "composite")
    issued = terminal.json(
        "key", "create", "--tenant", tenant["id"], "--role", "developer", "--name", "test"
    )
    with snapshot(sqlite_database) as connection:
        principal = keys.authenticate(connection, issued["secret"])
        tariff = tariff_in_force(connection, tenant["id"], clock.now_us())
    assert principal is not None
    assert (principal.tenant_id, principal.key_id) == (tenant["id"], issued["id"])
    assert tariff.tariff == "composite"


def test_what_was_made_is_listed_without_secrets(terminal: Terminal) -> None:
    tenant = terminal.json("tenant", "create", "Acme")
    options = ("--tenant", tenant["id"], "--role", "owner", "--name", "o", "--days", "1", "--test")
    issued = terminal.json("key", "create", *options)
    assert terminal.json("tenant", "list")["items"] == [tenant]
    [listed] = terminal.json("key", "list", "--tenant", tenant["id"])["items"]
    assert listed["id"] == issued["id"]
    assert listed["expires_at"] == "2026-12-02T00:00:00Z"
    text = terminal.run("key", "list").stdout
    assert issued["id"] in text
    assert issued["secret"] not in text


def test_keys_are_rotated_and_revoked(terminal: Terminal, sqlite_database: Engine) -> None:
    tenant = terminal.json("tenant", "create", "Acme")
    first = terminal.json(
        "key", "create", "--tenant", tenant["id"], "--role", "owner", "--name", "o"
    )
    second = terminal.json("key", "rotate", first["id"], "--overlap-s", "0")
    with snapshot(sqlite_database) as connection:
        assert keys.authenticate(connection, first["secret"]) is None
        assert keys.authenticate(connection, second["secret"]) is not None
    assert terminal.json("key", "revoke", second["id"])["revoked_at"]
    assert terminal.json("key", "revoke", second["id"])["revoked_at"]
    with snapshot(sqlite_database) as connection:
        assert keys.authenticate(connection, second["secret"]) is None


def test_a_tenant_is_suspended_and_resumed(terminal: Terminal) -> None:
    tenant = terminal.json("tenant", "create", "Acme")
    assert terminal.json("tenant", "suspend", tenant["id"])["suspended"] is True
    assert terminal.json("tenant", "resume", tenant["id"])["suspended"] is False


def test_every_change_is_in_the_audit_log(terminal: Terminal) -> None:
    issued = terminal.json("admin", "bootstrap")
    tenant = terminal.json("tenant", "create", "Acme")
    terminal.json("tenant", "suspend", tenant["id"])
    lines = terminal.json("admin", "audit")["items"]
    assert [line["action"] for line in reversed(lines)] == [
        "key.bootstrapped",
        "tenant.created",
        "tenant.suspended",
    ]
    assert {line["actor"] for line in lines} == {audit.CLI}
    text = terminal.run("admin", "audit", "--tenant", tenant["id"]).stdout
    assert "tenant.created" in text
    assert issued["secret"] not in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("tenant", "create", ""), InvalidParameter),
        (("tenant", "create", "a\x00b"), InvalidParameter),
        (("tenant", "create", "Acme", "--time-zone", "Mars"), InvalidParameter),
        (("tenant", "create", "Acme", "--currency", "ZZZ"), InvalidParameter),
        (("economics", "costs", "--per-hour", "1", "--currency", "ZZZ"), InvalidEconomics),
        (("tenant", "suspend", "ten_nobody"), NotFound),
        (("key", "create", "--role", "owner", "--name", "n"), InvalidParameter),
        (("key", "revoke", "key_nobody"), NotFound),
        (("key", "list", "--tenant", "ten_nobody"), NotFound),
        (("budget", "list", "ten_nobody"), NotFound),
        (("project", "list", "ten_nobody"), NotFound),
        (("grant", "list", "ten_nobody"), NotFound),
        (("terms", "show", "ten_nobody"), NotFound),
        (("usage", "show", "ten_nobody"), SystemExit),
    ],
)
def test_what_makes_no_sense_fails_and_changes_nothing(
    terminal: Terminal, arguments: tuple[str, ...], error: type[Exception]
) -> None:
    result = terminal.run(*arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, error)
    assert terminal.json("admin", "audit")["items"] == []


@pytest.mark.parametrize("days", ["0", "36501", "3000000", "9" * 30])
def test_a_key_whose_expiry_no_calendar_shows_is_never_made(terminal: Terminal, days: str) -> None:
    options = ("--role", "operator", "--name", "n", "--days")
    assert terminal.run("key", "create", *options, days).exit_code == 2
    assert terminal.json("key", "list")["items"] == []
    assert terminal.json("key", "create", *options, "36500")["expires_at"].startswith("2126-")


def test_spending_is_ordered_from_the_command_line(terminal: Terminal) -> None:
    tenant = terminal.json("tenant", "create", "Acme")["id"]
    key = terminal.json("key", "create", "--role", "owner", "--name", "k", "--tenant", tenant)["id"]
    issue = ("issue", tenant, "5", "--reference", "gift", "--promotional")
    assert terminal.json("grant", *issue)["remaining"] == "5"
    assert terminal.json("credit", "show", tenant)["available"] == "5"
    assert len(terminal.json("grant", "list", tenant)["items"]) == 1
    assert terminal.json("grant", "reverse", tenant, "gift")["remaining"] == "0"
    changed = terminal.json("terms", "set", tenant, "--receivable-limit", "20")
    assert changed["receivable_limit"] == "20"
    assert terminal.json("terms", "show", tenant) == changed
    budget = terminal.json("budget", "define", tenant, "10", "--period", "day", "--key", key)
    assert terminal.json("budget", "list", tenant)["items"] == [budget]
    assert terminal.json("budget", "close", tenant, budget["id"])["closed_at"] is not None
    assert terminal.json("limit", tenant, "--concurrency", "2")["concurrency"] == 2
    project = terminal.json("project", "create", tenant, "search")
    assert terminal.json("project", "list", tenant)["items"] == [project]
    put = terminal.json("project", "key", tenant, project["id"], key)
    assert put["project_id"] == project["id"]
    assert terminal.json("project", "archive", tenant, project["id"])["archived_at"] is not None
    refused = terminal.run("refund", "req_none", "--reference", "r", "--reason", "x")
    assert refused.exit_code == 1
