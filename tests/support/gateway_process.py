"""A real gateway process over a real engine process, for tests that need both.

State lives under one home directory, so that a test can kill the process and start another on
what it left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from api import keys, tenants
from api.migrate import upgrade
from api.roles import Role
from billing import catalogue
from billing.ledger import credits
from billing.money import parse_nano
from billing.reconciliation import reconcile
from metering.clock import now_us
from metering.database import open_database, snapshot, transaction

START_TIMEOUT_S = 60.0
ADDRESS = re.compile(rb"Uvicorn running on (http://[0-9.]+:[0-9]+)")
# What settings leave to the lot, drawn by ids that nobody chose, a test asks for or has not.
NO_LOTS = {"DFLASH_AUDIT_SAMPLE_RATE": "0", "DFLASH_SECOND_OPINION_RATE": "0"}


@dataclass
class GatewayHome:
    """A gateway's state on disk, and the command line that acts on it."""

    path: Path
    model: Path
    database_url: str | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, path: Path, model: Path, database_url: str | None = None) -> GatewayHome:
        """A new home, on a database that has our tables or on one of its own."""
        path.mkdir(parents=True)
        if database_url is None:
            (path / "gateway.db").write_bytes(_migrated())
        return cls(path, model, database_url)

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{(self.path / 'gateway.db').resolve()}"

    @property
    def environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("DFLASH_")}
        env |= {"DFLASH_HOME": str(self.path), "DFLASH_MODEL": str(self.model)}
        env |= {"DFLASH_ENGINE__THREADS": "1"} | NO_LOTS
        if self.database_url:
            env["DFLASH_DATABASE_URL"] = self.database_url
        return env | self.settings

    def dflash(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a `dflash` command against this home."""
        done = subprocess.run(
            [sys.executable, "-m", "dflash", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"dflash {' '.join(arguments)}: {done.stderr}")
        return done

    def json(self, *arguments: str) -> dict[str, Any]:
        """Run a command with `--json` and read its last line."""
        line = self.dflash(*arguments, "--json").stdout.strip().splitlines()[-1]
        return dict(json.loads(line))

    def assert_reconciled(self) -> None:
        """All books agree, by what `dflash reconcile` runs; a process for it takes two seconds."""
        database = open_database(self.resolved_database_url)
        try:
            with snapshot(database) as connection:
                assert reconcile(connection).differences == ()
        finally:
            database.dispose()

    @contextmanager
    def running(self) -> Iterator[Gateway]:
        """Serve until the block ends; a process that a test killed is left as it is."""
        gateway = Gateway.start(self)
        try:
            yield gateway
        finally:
            gateway.stop()


@cache
def _migrated() -> bytes:
    """An SQLite file with our tables, made once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.db"
        upgrade(f"sqlite:///{path}")
        return path.read_bytes()


@dataclass
class Gateway:
    """A serving process."""

    home: GatewayHome
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @classmethod
    def start(cls, home: GatewayHome) -> Gateway:
        log = home.path / "gateway.log"
        with log.open("ab") as sink:
            began = sink.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "dflash", "serve", "--port", "0"],
                env=home.environment,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        gateway = cls(home, process, "", log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise AssertionError(f"gateway ended at start: {log.read_text()[-4000:]}")
            if found := ADDRESS.search(log.read_bytes()[began:]):
                gateway.url = found[1].decode()
                if httpx.get(f"{gateway.url}/ready", timeout=20).status_code == 200:
                    return gateway
            time.sleep(0.05)
        gateway.kill()
        raise AssertionError(f"gateway did not become ready: {log.read_text()[-4000:]}")

    def client(self, key: str | None, **options: object) -> httpx.Client:
        """An HTTP client that presents `key`."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, **options)  # type: ignore[arg-type]

    def kill(self) -> None:
        """SIGKILL the serving process alone: its engine must notice by itself."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ask the process to end, and insist."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError("gateway did not stop on SIGTERM") from None


@dataclass
class Tenant:
    """A tenant of a home, and its developer key."""

    home: GatewayHome
    id: str
    key: str


def make_tenant(home: GatewayHome, credit: str = "5", tariff: str = "composite") -> Tenant:
    """A tenant with credit, a tariff and a developer key, written straight to the database."""
    database = open_database(home.resolved_database_url)
    try:
        with transaction(database) as connection:
            catalogue.install_shipped(connection)
            tenant = tenants.create(connection, name="Acme", currency="USD")
            catalogue.assign(connection, tenant.id, tariff, now_us())
            if credit != "0":
                credits.grant(connection, tenant.id, parse_nano(credit), f"test:{tenant.id}")
            key = keys.create(connection, tenant_id=tenant.id, role=Role.DEVELOPER, name="test")
    finally:
        database.dispose()
    return Tenant(home, tenant.id, key.secret)
