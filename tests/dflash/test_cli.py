"""The front door: a table of contents that opens only the chapter asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from api.errors import NotFound
from billing.errors import InvoiceConflict
from billing.turns import turns
from dflash.cli import COMMANDS, cli, describe, describe_all, load, main
from engine import huge_pages

NO_MODEL_NEEDED = [
    ["--help"],
    ["--version"],
    ["--list-models"],
    ["models"],
    ["doctor", "--json"],
    ["migrate"],
    ["reconcile"],
    ["receipt", "verify", "missing.json", "--keys", "missing.json"],
]
PROBE = """
import sys
from dflash.cli import main
sys.argv[0] = "dflash"
try:
    main()
finally:
    loaded = sorted({"torch", "triton"} & set(sys.modules))
    print("loaded:", loaded, file=sys.stderr)
"""
EXPLAIN = """
import sys
from click.testing import CliRunner
from dflash.cli import COMMANDS, cli
for name in COMMANDS:
    done = CliRunner().invoke(cli, [name, "--help"])
    assert done.exit_code == 0, (name, done.output)
    assert not {"torch", "triton"} & set(sys.modules), name
"""


@pytest.mark.parametrize("arguments", NO_MODEL_NEEDED, ids=" ".join)
def test_a_command_that_needs_no_model_imports_no_torch(
    arguments: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "--home", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "loaded: []"
    assert done.returncode == 0 or arguments[0] in {"reconcile", "receipt"}  # nothing is there yet
    assert "Traceback" not in done.stderr


def test_no_command_imports_torch_to_explain_itself() -> None:
    subprocess.run([sys.executable, "-c", EXPLAIN], check=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_the_table_exists_and_explains_itself(name: str) -> None:
    command = load(name)
    assert command.name == name
    assert command.help, "a command says what it does"


def test_no_command_of_a_package_is_missing_from_the_table() -> None:
    modules = {entry.module for entry in COMMANDS.values()}
    for module in modules:
        commands = vars(sys.modules[load_module(module)]).values()
        top = {value.name for value in commands if isinstance(value, click.Command)}
        nested = {
            child
            for value in commands
            if isinstance(value, click.Group)
            for child in value.commands
        }
        assert top - nested <= set(COMMANDS)


def load_module(module: str) -> str:
    load(next(name for name, entry in COMMANDS.items() if entry.module == module))
    return module


def test_help_lists_every_command_without_importing_any() -> None:
    done = CliRunner().invoke(cli, ["--help"])
    assert done.exit_code == 0
    assert all(f"\n  {name} " in done.output for name in COMMANDS)


def test_without_arguments_it_shows_its_help() -> None:
    done = CliRunner().invoke(cli, [])
    assert done.exit_code == 0
    assert "Commands:" in done.output


def test_the_version_is_the_distributions() -> None:
    done = CliRunner().invoke(cli, ["--version"])
    assert done.output == f"dflash {version('dflash-gateway')}\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    done = CliRunner().invoke(cli, ["frobnicate"])
    assert done.exit_code == 2
    assert "No such command 'frobnicate'" in done.output


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_PORT", "seventy")
    done = CliRunner().invoke(cli, ["migrate"])
    assert done.exit_code == 2
    assert "port" in done.output


@pytest.mark.parametrize("home", [".", "no/such/folder"])
def test_a_database_without_a_schema_is_answered_with_the_remedy(tmp_path: Path, home: str) -> None:
    done = CliRunner().invoke(cli, ["--home", str(tmp_path / home), "reconcile"])
    assert done.exit_code == 1
    assert "dflash migrate" in done.output
    assert "sqlalche.me" not in done.output


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NotFound("no key 7"), "no key 7"),
        (FileNotFoundError(2, "No such file or directory", "x.dfm"), "x.dfm: No such file"),
        (KeyError("surprise"), "KeyError: 'surprise' (a defect of ours"),
        (ValueError("two\nlines"), "ValueError: two lines"),
    ],
)
def test_an_error_becomes_one_line(error: Exception, line: str) -> None:
    described = describe(error)
    assert described.startswith(line)
    assert "\n" not in described


def test_what_failed_for_some_of_many_is_one_line_that_names_them() -> None:
    def remind() -> None:
        with turns("reminders") as each:
            for tenant_id in ("ten_1", "ten_2", "ten_3"):
                with each.of(tenant_id):
                    if tenant_id != "ten_2":
                        raise InvoiceConflict(f"{tenant_id} has none")

    with pytest.raises(ExceptionGroup) as failed:
        remind()
    line = "reminders failed: of ten_1, ten_1 has none; of ten_3, ten_3 has none"
    assert describe_all(failed.value) == line


def test_what_is_logged_never_mixes_with_what_is_printed(tmp_path: Path) -> None:
    logging_command = """
import structlog
from dflash import cli

@cli.cli.command("shout")
def shout():
    structlog.get_logger().warning("something.happened")
    print("{}")

cli.COMMANDS.clear()
cli.Contents.get_command = lambda self, ctx, name: shout
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", logging_command, "--home", str(tmp_path), "shout"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "{}\n"
    assert "something.happened" in done.stderr


@pytest.mark.parametrize(
    ("words", "restarts"),
    [(["serve"], 1), (["--home", "elsewhere", "measure", "rating"], 1), (["key", "list"], 0)],
)
def test_only_what_lasts_is_started_a_second_time(
    monkeypatch: pytest.MonkeyPatch, words: list[str], restarts: int
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(huge_pages, "restart", lambda: begun.append("again"))
    monkeypatch.setattr(cli, "main", lambda **_kwargs: begun.append("ran"))
    monkeypatch.setattr("sys.argv", ["dflash", *words])
    main()
    assert begun == ["again"] * restarts + ["ran"]
