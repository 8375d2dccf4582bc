"""A gateway process is started, waited for, and stopped however the block ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from api.quickstart import server
from api.quickstart.server import QuickstartFailed, Server
from api.settings import Settings

LOCALHOST = "127.0.0.1"


def test_a_free_port_is_taken_as_wanted() -> None:
    wanted = server.free_port(LOCALHOST, 0)
    assert server.free_port(LOCALHOST, wanted) == wanted


def test_a_taken_port_is_replaced_by_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind((LOCALHOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert server.free_port(LOCALHOST, port) not in (0, port)


def test_a_gateway_that_cannot_start_is_reported_with_its_last_word(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, model=str(tmp_path / "missing.dfm"))
    with (
        server.serving(settings, server.free_port(LOCALHOST, 0)) as running,
        pytest.raises(QuickstartFailed, match=r"at its start: .*missing\.dfm.*gateway\.log"),
    ):
        server.await_ready(running, lambda _waited: None)
    assert running.process.returncode not in (None, 0)


def test_a_databases_password_is_not_among_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine may read arguments; the environment is its owner's."""
    url = "postgresql+psycopg://us:secret@127.0.0.1:1/none"
    settings = Settings(home=tmp_path, database_url=url)
    started: list[tuple[list[str], dict[str, str]]] = []

    def start(command: list[str], *, env: dict[str, str], **_: object) -> object:
        started.append((command, env))
        return object()

    monkeypatch.setattr(server, "_stop", lambda _process: None)
    with monkeypatch.context() as patched:
        patched.setattr("subprocess.Popen", start)
        with server.serving(settings, 1):
            pass
    ((command, env),) = started
    assert not any("secret" in word for word in command)
    assert env["DFLASH_DATABASE_URL"] == url


def test_the_process_is_stopped_when_the_block_fails(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    server._stop(process)
    assert process.returncode is not None
    server._stop(process)  # a second time changes nothing


def test_a_gateway_that_ends_by_itself_ends_the_wait(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_text("first\nthe last word\n\n")
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(QuickstartFailed, match="status 3: the last word"):
        Server("http://127.0.0.1:1", process, log).wait()


def test_a_silent_log_is_said_to_be_silent(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    assert server.last_line(tmp_path / "log").startswith("it said nothing")
