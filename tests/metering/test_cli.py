"""`dflash units explain`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.text import Text

from dflash.cli import cli
from metering.cli import units


def test_units_are_shown_with_kind_state_and_place(tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_text("# Title\nOne. Tw")
    shown = CliRunner().invoke(units, ["explain", str(path), "--cut"])
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.output.splitlines()]
    assert lines[0] == ["heading", "0-8", "#", r"Title\n"]
    assert lines[2][:3] == ["sentence", "13-15", "fragment"]
    assert lines[3][:2] == ["3", "units"]


def test_units_are_written_as_json_lines() -> None:
    shown = CliRunner().invoke(units, ["explain", "-", "--json"], input=b"One. B\xff")
    first, second = (json.loads(line) for line in shown.output.splitlines())
    assert (first["kind"], first["state"], first["text"]) == ("sentence", "complete", "One. ")
    assert (second["byte_start"], second["byte_end"], second["text"]) == (5, 7, "B\ufffd")


def test_units_are_painted_over_the_text_in_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "text.md"
    path.write_text("One. Two.\n- a\x1b[31m\u202e\n")
    shown = CliRunner().invoke(units, ["explain", str(path), "--text"], color=True)
    text = Text.from_ansi(shown.output)
    assert text.plain.startswith("One. Two.\n- a\\x1b[31m\\u202e\n")
    grounds = [str(span.style) for span in text.spans]
    assert len(set(grounds[:3])) == 3, "neighbours differ, and kinds do"
    assert "sentence list_item" in text.plain


def test_the_terminal_is_not_obeyed_by_the_list(tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_bytes(b"a\x1b[2J\xc2\x9bb")
    shown = CliRunner().invoke(units, ["explain", str(path)])
    assert "\x1b" not in shown.output
    assert "\x9b" not in shown.output


def test_a_list_for_programs_is_not_painted() -> None:
    done = CliRunner().invoke(units, ["explain", "-", "--json", "--text"], input=b"One.")
    assert done.exit_code == 2
    assert "take one" in done.output


@pytest.mark.parametrize(
    ("encoding", "shape"),
    [
        ("ascii", ()),
        ("ascii", ("--text",)),
        ("latin-1", ()),
        ("latin-1", ("--text",)),
        ("latin-1", ("--json",)),
        ("cp1252", ("--json",)),
    ],
)
def test_what_the_terminal_cannot_write_is_escaped_and_nothing_is_cut(
    encoding: str, shape: tuple[str, ...]
) -> None:
    text = "Crème → 走る 😀.\nEnd"
    done = CliRunner(charset=encoding).invoke(
        cli, ["units", "explain", "-", *shape], input=text.encode(), env={"COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    shown = done.stdout_bytes.decode(encoding)
    assert "\\u2192 \\u8d70\\u308b \\ud83d\\ude00." in shown
    assert "End" in shown
    if shape == ("--json",):
        assert "".join(json.loads(line)["text"] for line in shown.splitlines()) == text


def test_a_missing_file_is_a_usage_error() -> None:
    assert CliRunner().invoke(units, ["explain", "no such file"]).exit_code == 2


def test_the_command_loads_no_torch(tmp_path: Path) -> None:
    code = "import sys, metering.cli, metering.recorder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
