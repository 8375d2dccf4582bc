"""A gateway process of our own: started, waited for, and stopped however we end."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from api.errors import ApiError
from api.settings import Settings

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.1


class QuickstartFailed(ApiError):
    """The demonstration could not be completed; the message says at which step."""


@dataclass(frozen=True, slots=True)
class Server:
    """A gateway that answers at `url`."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> None:
        """Block until the process ends by itself. Raises QuickstartFailed when it does."""
        status = self.process.wait()
        raise QuickstartFailed(f"the gateway ended with status {status}: {last_line(self.log)}")


def free_port(host: str, wanted: int) -> int:
    """The wanted port if it can be bound, else one that the system chooses."""
    for port in (wanted, 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise QuickstartFailed(f"no port of {host} can be bound")


@contextmanager
def serving(settings: Settings, port: int) -> Iterator[Server]:
    """Run `dflash serve` until the block ends. Its log goes to `gateway.log` under the home."""
    log = settings.home / "gateway.log"
    command = [
        *(sys.executable, "-m", "dflash", "--home", str(settings.home)),
        *("serve", "--host", settings.host, "--port", str(port), "--model", settings.model),
    ]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=settings.environment(),
            start_new_session=True,  # a Ctrl-C reaches us alone, and we stop it in order
        )
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        yield Server(f"http://{shown}:{port}", process, log)
    finally:
        _stop(process)


def await_ready(server: Server, tick: Callable[[float], None]) -> None:
    """Poll `/ready` until it says so; `tick` hears the seconds waited. Raises QuickstartFailed."""
    started = time.monotonic()
    while (waited := time.monotonic() - started) < READY_TIMEOUT_S:
        if (status := server.process.poll()) is not None:
            raise QuickstartFailed(
                f"the gateway ended with status {status} at its start: {last_line(server.log)}"
            )
        tick(waited)
        try:
            if httpx.get(f"{server.url}/ready", timeout=2.0).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(POLL_INTERVAL_S)
    raise QuickstartFailed(
        f"the gateway was not ready after {READY_TIMEOUT_S:g} s: {last_line(server.log)}"
    )


def last_line(log: Path) -> str:
    """The last thing a log says, and where to read the rest."""
    lines = log.read_text(errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return f"{said.strip()} (see {log})"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
