"""`dflash doctor` prints every finding and fails only when one of them does."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tiny_models import write_tiny_dfm

from api.doctor.cli import report
from api.doctor.findings import fail, ok, warn
from dflash.cli import cli

CHECKS = {
    *(
        "python",
        "packages",
        "kernels",
        "cuda",
        "vm.min_free_kbytes",
        "nvml",
        "rapl",
        "threads",
        "memory",
    ),
    *("disk", "model", "longest_token_length", "database", "signing key"),
}


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dfm(tmp_path_factory.mktemp("doctor") / "tiny.dfm")


def test_a_healthy_installation_passes(tmp_path: Path, model_file: Path) -> None:
    arguments = ["--home", str(tmp_path), "doctor", "--json", "--model", str(model_file)]
    done = CliRunner().invoke(cli, arguments)
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert set(findings) == CHECKS
    assert [check for check, finding in findings.items() if finding["level"] == "fail"] == []
    assert done.exit_code == 0


def test_a_failed_check_fails_the_command(tmp_path: Path) -> None:
    broken = tmp_path / "broken.dfm"
    broken.write_bytes(b"no model")
    done = CliRunner().invoke(cli, ["--home", str(tmp_path), "doctor", "--model", str(broken)])
    assert done.exit_code == 1
    assert "FAIL" in done.output
    assert "dflash pull" in done.output


def test_it_changes_nothing(tmp_path: Path, model_file: Path) -> None:
    home = tmp_path / "home"
    CliRunner().invoke(cli, ["--home", str(home), "doctor", "--model", str(model_file)])
    assert list(tmp_path.iterdir()) == []


def test_advice_stands_under_its_finding() -> None:
    text = report([ok("a", "fine"), warn("bb", "slow", "hurry"), fail("c", "dead", "restart")])
    assert click.unstyle(text).splitlines() == [
        "  ok  a   fine",
        "warn  bb  slow",
        "          -> hurry",
        "FAIL  c   dead",
        "          -> restart",
    ]
