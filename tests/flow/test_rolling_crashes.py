"""The gateway killed at random under load, again and again: every time, all books agree.

`pytest tests/flow/test_rolling_crashes.py --crashes 100` takes longer and finds more.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import PostgresServer
from flow_streams import events
from gateway_process import Gateway, GatewayHome, Tenant, make_tenant
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError

from billing.reconciliation import reconcile
from billing.tables import holds, receipts
from metering.database import open_database, snapshot
from metering.events import FINAL_STATUSES
from metering.tables import requests

CLIENTS = 4
CRASHES = {"sqlite": 2, "postgresql": 1}  # unless more are asked for
RUN_S = (0.05, 1.2)  # how long a gateway lives under load
PROMPTS = ("hello", "a longer prompt, of which some is shared", "a longer prompt, of which more")


class Load:
    """Clients that ask, stream, leave early, and ask again after a crash with the same key."""

    def __init__(self, tenant: Tenant, chance: random.Random) -> None:
        self._tenant = tenant
        self._chance = chance
        self._keys = itertools.count()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._unanswered: list[tuple[str, dict[str, Any]]] = []
        self.refusals: list[int] = []
        self.receipts: dict[str, tuple[dict[str, Any], str]] = {}  # by key: the order, its hash

    def start(self, gateway: Gateway) -> None:
        self._stopping.clear()
        self._threads = [
            threading.Thread(target=self._ask, args=(gateway, self._chance.random()))
            for _ in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, gateway: Gateway, seed: float) -> None:
        chance = random.Random(seed)
        with gateway.client(self._tenant.key) as client:
            while not self._stopping.is_set():
                key, order = self._next(chance)
                try:
                    self._send(client, key, order, leaves=chance.random() < 0.2)
                except httpx.TransportError:
                    self._unanswered.append((key, order))
                    return

    def _next(self, chance: random.Random) -> tuple[str, dict[str, Any]]:
        with suppress(IndexError):
            return self._unanswered.pop()
        order = {
            "prompt": chance.choice(PROMPTS),
            "max_tokens": chance.choice([4, 24, 120]),
            "seed": chance.randrange(3),
            "temperature": 1.0,
            "stream": chance.random() < 0.5,
        }
        return f"key-{next(self._keys)}", order

    def _send(self, client: httpx.Client, key: str, order: dict[str, Any], *, leaves: bool) -> None:
        headers = {"idempotency-key": key}
        if not order["stream"]:
            answer = client.post("/generate", json=order, headers=headers)
            if self._is_served(answer):
                self._keep(key, order, answer.json()["receipt"])
            return
        with client.stream("POST", "/generate", json=order, headers=headers) as response:
            if not self._is_served(response):
                return
            for name, data in events(response):
                if name == "receipt":
                    self._keep(key, order, data["receipt"])
                elif leaves:
                    return

    def _is_served(self, answer: httpx.Response) -> bool:
        """Only what comes of a crash is a reason not to be: the key in use, no engine, no time."""
        if answer.status_code not in (200, 409, 503):
            self.refusals.append(answer.status_code)
        return answer.status_code == 200

    def _keep(self, key: str, order: dict[str, Any], signed: dict[str, Any]) -> None:
        _, sha256 = self.receipts.setdefault(key, (order, signed["sha256"]))
        assert sha256 == signed["sha256"], "the same key was answered with another receipt"

    def repeat(self, gateway: Gateway, count: int) -> None:
        """Ask again for some of what was answered: it is answered with the same receipt."""
        with gateway.client(self._tenant.key) as client:
            for key in self._chance.sample(sorted(self.receipts), min(count, len(self.receipts))):
                self._send(client, key, self.receipts[key][0], leaves=False)


def books_are_whole(database: Engine, load: Load) -> int:
    """After a recovery: nothing is live, no hold is left, all books agree; how many requests."""
    with snapshot(database) as connection:
        assert reconcile(connection).differences == ()
        live = select(requests.c.id).where(requests.c.status.not_in(FINAL_STATUSES))
        assert connection.scalars(live).all() == []
        pending = select(holds.c.request_id).where(holds.c.state == "pending")
        assert connection.scalars(pending).all() == []
        stored = set(connection.scalars(select(receipts.c.sha256)))
        given = {sha256 for _, sha256 in load.receipts.values()}
        assert given <= stored, "a receipt was handed out and then lost"
        return connection.scalar(select(func.count()).select_from(requests)) or 0


def wait_for_requests(database: Engine) -> None:
    """Return once something was asked."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with snapshot(database) as connection:
            if connection.scalar(select(func.count()).select_from(requests)):
                return
        time.sleep(0.02)
    raise AssertionError("nothing was admitted for a minute")


@pytest.fixture(params=CRASHES)
def crashing_home(request: pytest.FixtureRequest, tmp_path: Path, tiny_model: Path) -> GatewayHome:
    url = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    home = GatewayHome.create(tmp_path / "home", tiny_model, url)
    home.settings["DFLASH_REQUESTS_PER_MINUTE"] = "1000000"
    return home


@pytest.fixture
def books(crashing_home: GatewayHome) -> Iterator[Engine]:
    opened = open_database(crashing_home.resolved_database_url)
    yield opened
    opened.dispose()


def test_killed_at_any_point_under_load_it_restarts_with_books_that_agree(
    crashing_home: GatewayHome, books: Engine, request: pytest.FixtureRequest
) -> None:
    crashes = request.config.getoption("--crashes") or CRASHES[books.dialect.name]
    chance = random.Random(f"{books.dialect.name} {crashes}")
    load = Load(make_tenant(crashing_home, credit="1000"), chance)
    for _ in range(crashes):
        gateway = Gateway.start(crashing_home)
        try:
            books_are_whole(books, load)
            load.start(gateway)
            wait_for_requests(books)  # a busy machine may take its time
            threading.Event().wait(chance.uniform(*RUN_S))
        finally:
            # Sometimes the engine goes with it, sometimes it is left behind.
            if chance.random() < 0.5:
                os.killpg(gateway.process.pid, signal.SIGKILL)
            gateway.kill()
            load.stop()
    with crashing_home.running() as gateway:
        served = books_are_whole(books, load)
        load.repeat(gateway, 5)
        assert served == books_are_whole(books, load) > 0
    assert load.refusals == []


@pytest.fixture
def failing_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.last()
    yield server
    server.close()


def test_a_database_server_that_fails_under_load_leaves_books_that_agree(
    failing_server: PostgresServer, tmp_path: Path, tiny_model: Path
) -> None:
    url = failing_server.create(tables=True)
    home = GatewayHome.create(tmp_path / "home", tiny_model, url)
    home.settings["DFLASH_REQUESTS_PER_MINUTE"] = "1000000"
    load = Load(make_tenant(home, credit="1000"), random.Random(7))
    books = open_database(url)
    with home.running() as gateway:
        load.start(gateway)
        wait_for_requests(books)
        for _ in range(2):
            threading.Event().wait(1.0)
            failing_server.fail()
        threading.Event().wait(1.0)
        load.stop()
        wait_until_nothing_lives(books)
        assert books_are_whole(books, load) > 0
        load.repeat(gateway, 3)
    books.dispose()
    assert load.refusals == []
    assert load.receipts


def wait_until_nothing_lives(database: Engine) -> None:
    """Return once every request has ended."""
    live = select(func.count()).where(requests.c.status.not_in(FINAL_STATUSES))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(DBAPIError), snapshot(database) as connection:
            if not connection.scalar(live):
                return
        time.sleep(0.05)
    raise AssertionError("a request did not end for a minute")
