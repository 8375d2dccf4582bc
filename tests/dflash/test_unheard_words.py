"""No command takes a word that it does not honour: another tenant's name, a month, a number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from billing import tariffs
from dflash.cli import COMMANDS, describe, load
from metering.cli_context import CliContext

TARIFF = Path(tariffs.__file__).parent / "shipped" / "token.yaml"
# What a command must be given besides, by the name of its parameter.
GIVEN = {
    "amount": "1",
    "budget_id": "bud_x",
    "email": "a@b.example",
    "event_name": "tokens",
    "everything": True,
    "key_id": "key_x",
    "last": "1",
    "limit": "1",
    "measure": "requests",
    "name": "composite",
    "per_hour": "1",
    "period": "2026-10",
    "project_id": "prj_x",
    "reference": "r",
    "role": "developer",
}
# These find out first that something else is wrong, and change nothing either.
OTHERWISE = {
    "budget close": "no budget",
    "payments meter": "does not pay through the provider",
    "project archive": "no project",
    "project key": "no project",
}


def commands(
    of: click.Command, name: str, context: click.Context
) -> Iterator[tuple[str, click.Command]]:
    if isinstance(of, click.Group):
        for each in of.list_commands(context):
            found = of.get_command(context, each)
            assert found is not None
            yield from commands(found, f"{name} {each}", context)
    else:
        yield name, of


def taking(parameter: str) -> list[str]:
    """Every command line of ours that takes a parameter, by its name in the code."""
    return [
        name
        for top in COMMANDS
        for name, each in commands(load(top), top, click.Context(load(top)))
        if any(known.name == parameter for known in each.params)
    ]


def _something(wanted: click.Parameter, command: str, home: CliContext) -> Any:
    if isinstance(wanted.type, click.Choice):
        return wanted.type.choices[0]
    if wanted.name == "file":
        return str(home.home / "changes.yaml" if command == "tariff override" else TARIFF)
    return GIVEN[wanted.name or ""]


def run(name: str, home: CliContext, **wanted: str) -> Result:
    """Run a command with one word of ours, and something for all that it requires."""
    top, *rest = name.split()
    command = load(top)
    for inner in rest:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), inner) or command
    words = list(rest)
    for each in command.params:
        value: Any = wanted.get(each.name or "")
        if value is None and (each.required or each.name in {"everything", "last"}):
            value = _something(each, name, home)
        if value is not None and isinstance(each, click.Option):
            words += [each.opts[0]] if value is True else [each.opts[0], value]
        elif value is not None:
            words.append(value)
    return CliRunner().invoke(load(top), words, obj=home)


@pytest.fixture
def home(sqlite_url: str, tmp_path: Path) -> CliContext:
    (tmp_path / "changes.yaml").write_text("review: {fee: '0.02'}\n")
    return CliContext(tmp_path, sqlite_url)


def said(result: Result) -> str:
    known = result.exception
    return result.output + (describe(known) if isinstance(known, Exception) else "")


def test_every_command_about_a_tenant_says_that_there_is_no_such_tenant(home: CliContext) -> None:
    names = taking("tenant_id")
    assert len(names) > 25
    for name in names:
        result = run(name, home, tenant_id="ten_nope")
        assert result.exit_code != 0, name
        assert OTHERWISE.get(name, "no tenant") in said(result), (name, said(result))


def test_every_command_about_a_month_refuses_what_is_none(home: CliContext) -> None:
    names = taking("period")
    assert len(names) > 5
    for name in names:
        for month in ("2026-13", "soon"):
            result = run(name, home, period=month, tenant_id="ten_nope")
            assert result.exit_code != 0, name
    for name in ("reconcile", "invoice list"):
        assert "a period is a month" in said(run(name, home, period="2026-13"))


@pytest.mark.parametrize(
    "line",
    [
        "payments retry 9223372036854775808",
        "receipt audit --last 9223372036854775808",
        "limit ten_x --requests 9223372036854775808",
        "calibrate energy --seconds nan",
        "calibrate confidence --error nan",
        "meter record --seconds nan trace",
        "economics costs --per-hour 1 --currency usd",
    ],
)
def test_a_number_that_nothing_can_be_done_with_is_a_mistake_in_the_command(
    line: str, home: CliContext
) -> None:
    top, *words = line.split()
    assert CliRunner().invoke(load(top), words, obj=home).exit_code == click.UsageError.exit_code


@pytest.mark.parametrize(
    "words",
    [
        ["invoice", "customer", "ten_x", "--name", "x" * 201],
        ["invoice", "customer", "ten_x", "--name", "two\nlines"],
        ["invoice", "customer", "ten_x", "--address", "x" * 1001],
        ["invoice", "issuer", "--tax-id", "x" * 65],
        ["invoice", "credit", "INV-1", "1", "--reason", "\x1b[31mred"],
        ["invoice", "pay", "INV-1", "1", "--cause", "x" * 65],
        ["payments", "enrol", "ten_x", "nobody"],
        ["payments", "meter", "ten_x", "requests", "two words"],
        ["grant", "issue", "ten_x", "1", "--reference", "a/b"],
        ["credit", "grant", "ten_x", "1", "--reference", ""],
        ["refund", "req_x", "--reference", "r", "--reason", "x" * 10_001],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_text_that_only_one_of_two_databases_would_take_is_refused(
    words: list[str], home: CliContext
) -> None:
    result = CliRunner().invoke(load(words[0]), words[1:], obj=home)
    assert result.exit_code == click.UsageError.exit_code


@pytest.mark.parametrize(
    "line", ["tariff validate", "tariff override ten_x", "economics roi", "tariff preview"]
)
def test_a_document_that_is_no_text_is_named_so(line: str, home: CliContext) -> None:
    (home.home / "bytes").write_bytes(b"\xff\xfe")
    top, *words = f"{line} {home.home / 'bytes'}".split()
    if "preview" in words:
        words += ["--period", "2026-10"]
    result = CliRunner().invoke(load(top), words, obj=home)
    assert result.exit_code == 1
    assert "not UTF-8 text" in result.output
