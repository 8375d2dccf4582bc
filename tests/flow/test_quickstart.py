"""`dflash quickstart`, as `make run` calls it: an answer, a receipt that verifies, a clean end."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_process import GatewayHome

from billing.receipts import Signer, verify


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> GatewayHome:
    """A home that nothing was prepared in."""
    return GatewayHome(tmp_path / "home", tiny_model)


def quickstart(home: GatewayHome, *arguments: str) -> subprocess.CompletedProcess[str]:
    return home.dflash("quickstart", "--port", "0", *arguments, check=False)


def key_set(home: GatewayHome) -> dict[str, object]:
    return Signer.open(home.path / "keys" / "receipt_ed25519.pem").key_set()


def test_once_prints_the_receipt_as_json_or_as_a_page_and_keeps_its_tenant(
    home: GatewayHome,
) -> None:
    done = quickstart(home, "--once", "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    envelope = json.loads(line)
    verified = verify(envelope, key_set(home))
    assert envelope["receipt"]["tariff"]["name"] == "composite"
    assert verified.total_nano > 0
    assert "answer" in done.stderr

    again = quickstart(home, "--once")
    assert again.returncode == 0, again.stderr
    for word in ("prompt", "answer", "receipt", "confidence", "energy", "total", "verified"):
        assert word in again.stdout
    (tenant,) = home.json("tenant", "list")["items"]
    assert tenant["id"] == envelope["receipt"]["tenant_id"]
    home.dflash("reconcile")


def test_a_model_that_does_not_exist_is_one_clear_line(home: GatewayHome) -> None:
    done = quickstart(home, "--once", "--model", "no-such-model")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "no-such-model" in done.stderr.splitlines()[-1]


@pytest.fixture
def staying_up(home: GatewayHome) -> Iterator[subprocess.Popen[str]]:
    # what a script starts in the background ignores interrupts, and would hand that on
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "dflash", "quickstart", "--port", "0"],
        env=home.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(("stop", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_it_stays_up_until_it_is_told_to_stop(
    home: GatewayHome, staying_up: subprocess.Popen[str], stop: signal.Signals, status: int
) -> None:
    assert staying_up.stdout is not None
    printed = ""
    for line in staying_up.stdout:
        printed += line
        if line.startswith("curl "):
            break
    address = re.search(r"is up at (http://\S+);", printed)
    assert address is not None, printed
    url = address[1]
    curl = printed.splitlines()[-1]
    assert (home.path / "demo_key").read_text().strip() in curl
    assert httpx.get(f"{url}/ready").status_code == 200
    _curl, _silent, route, _h, key, _h, kind, _d, body = shlex.split(curl)
    headers = dict(header.split(": ") for header in (key, kind))
    answered = httpx.post(route, headers=headers, content=body, timeout=60).raise_for_status()
    assert answered.json()["receipt"]["receipt"]["total"]

    staying_up.send_signal(stop)
    assert staying_up.wait(timeout=60) == status
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health")
    assert not running_on(home)
    home.assert_reconciled()


def running_on(home: GatewayHome) -> list[str]:
    """Processes whose command line names this home."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(home.path) in command:
                found.append(command)
    return found
