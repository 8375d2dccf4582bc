"""Admissions by a process of their own, beside what is measured: rows and holds, as a gateway's."""

from __future__ import annotations

import itertools
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event

from billing import catalogue
from billing.gate import HoldGate
from metering import clock, requests
from metering.database import open_database, transaction
from metering.requests import AdmittedRequest

PAUSE_S = 0.005
LIFETIME_US = 3600 * 10**6
PATIENCE_S = 60.0


class AdmissionLoad:
    """Admits one request after the other, of the tenants in turn, until it is stopped."""

    def __init__(self, database_url: str, tenant_ids: list[str]) -> None:
        context = get_context("spawn")
        self._stopping = context.Event()
        self._answers, answers = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_admit, args=(database_url, tenant_ids, self._stopping, answers), daemon=True
        )

    def start(self) -> None:
        """Return once the first request is admitted."""
        self._process.start()
        self._receive()

    def stop(self) -> list[float]:
        """How long each admission took, in milliseconds, in ascending order."""
        self._stopping.set()
        waits_ms = self._receive()
        self._process.join()
        return sorted(waits_ms)

    def _receive(self) -> list[float]:
        if not self._answers.poll(PATIENCE_S):
            raise RuntimeError("the admissions beside the measurement gave no answer")
        found: list[float] = self._answers.recv()
        return found


def _admit(database_url: str, tenant_ids: list[str], stopping: Event, answers: Pipe) -> None:
    database = open_database(database_url)
    gate = HoldGate()
    waits_ms: list[float] = []
    for number in itertools.count():
        tenant_id = tenant_ids[number % len(tenant_ids)]
        started = time.perf_counter()
        with transaction(database) as connection:
            now_us = clock.now_us()
            version = catalogue.tariff_in_force(connection, tenant_id, now_us)
            admitted = AdmittedRequest(
                id=f"req_beside_{number:09d}",
                tenant_id=tenant_id,
                key_id="key_bench",
                model="bench",
                route="generate",
                tariff_version_id=version.id,
                parameters={},
                prompt="beside",
                input_tokens=20,
                max_tokens=100,
                max_cost_nano=None,
                end_user=None,
                tags=None,
                test_mode=False,
                started_at_us=now_us,
            )
            requests.admit(connection, admitted)
            gate.admit(connection, admitted, expires_at_us=now_us + LIFETIME_US)
        if number:
            waits_ms.append((time.perf_counter() - started) * 1e3)
        else:  # the first opens the database
            answers.send([])
        if stopping.wait(PAUSE_S):
            break
    answers.send(waits_ms)
    database.dispose()
