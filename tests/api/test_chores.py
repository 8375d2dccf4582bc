"""Chores: they do their work, go on after a failure, and end when they are told to."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from billing_cases import STARTED_US, energy, summary
from billing_world import FAR_US, add_request, add_tenant, settlement
from sqlalchemy import Connection, Engine, func, select, update
from sqlalchemy.exc import DBAPIError

from api import chores
from api.chores import Chores, sweep_chores, usage_chores
from billing import outside, retention
from metering import clock, rollups
from metering import requests as usage
from metering.database import snapshot, transaction
from metering.ingestion import envelopes, intake
from metering.ingestion.envelopes import OutsideEvent
from metering.tables import requests


@pytest.fixture(autouse=True)
def rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores, "ROUND_S", 0.001)


def test_a_step_that_fails_is_tried_again_and_keeps_no_other_waiting() -> None:
    done = threading.Event()
    tries = 0

    def fails() -> bool:
        nonlocal tries
        tries += 1
        raise OSError("the database went away")

    def works() -> bool:
        if tries > 2:
            done.set()
        return False

    running = Chores("test", [fails, works])
    running.start()
    assert done.wait(10)
    running.close()


def test_a_part_of_a_sweep_that_fails_takes_no_renewal_back(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection)
        add_request(connection, "req_1")
    renewed, swept, kept = [0], threading.Event(), [0]

    def keep() -> None:
        kept[0] += 1
        raise OSError("the lock's connection went away")

    def renew(connection: Connection) -> None:
        renewed[0] += 1
        connection.execute(update(requests).values(max_tokens=1000 + renewed[0]))

    def lapse(connection: Connection) -> None:
        connection.execute(update(requests).values(max_tokens=1))
        raise ValueError("an item that cannot be read")

    def recalibrate(_connection: Connection) -> None:
        if renewed[0] > 2:
            swept.set()

    sweeping = sweep_chores(database, 0.001, keep, [renew, lapse, recalibrate])
    sweeping.start()
    assert swept.wait(10)
    sweeping.close()
    with snapshot(database) as connection:
        found = connection.scalar(select(requests.c.max_tokens))
    assert (found, kept) == (1000 + renewed[0], renewed)


def test_a_step_with_more_to_do_is_not_kept_waiting_for_the_next_round() -> None:
    left = [True] * 5
    done = threading.Event()

    def step() -> bool:
        if left:
            left.pop()
            return True
        done.set()
        return False

    running = Chores("test", [step])
    running.start()
    assert done.wait(10)
    running.close()
    assert left == []


def test_a_tenant_whose_usage_cannot_be_rolled_up_keeps_no_other_waiting(database: Engine) -> None:
    with transaction(database) as connection:
        for tenant_id in ("ten_1", "ten_2", "ten_3"):
            add_tenant(connection, tenant_id)
            for number in range(2):
                add_request(connection, f"{tenant_id}_{number}", tenant_id)
                energy_uj = 2**62 if tenant_id == "ten_2" else 1  # two of them are no int64
                usage.finalise(
                    connection,
                    summary(
                        request_id=f"{tenant_id}_{number}",
                        tenant_id=tenant_id,
                        energy=energy(uj=energy_uj),
                    ),
                    "text",
                )

    def roll_up(tenant_id: str) -> int:
        with transaction(database) as connection:
            return rollups.refresh(connection, tenant_id)

    step = chores._in_turn(database, rollups.next_marked, roll_up)
    for more in ([True], [True, True], [False]):  # the first round had work, the second none
        assert [step() for _ in more] == more
        if more[-1]:
            with pytest.raises(DBAPIError):
                step()
    with snapshot(database) as connection:
        rows = rollups.read(connection, None, "day", 0, FAR_US)
        assert [(row.tenant_id, row.energy_uj) for row in rows] == [("ten_1", 2), ("ten_3", 2)]
        assert rollups.waiting(connection) == 2


def test_reported_usage_is_rated_rolled_up_and_old_content_erased(
    sqlite_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = STARTED_US + 90 * 86_400 * 10**6
    monkeypatch.setattr(clock, "now_us", lambda: now)
    settler = settlement(tmp_path)
    with transaction(sqlite_database) as connection:
        settler._signer.register(connection)
        add_tenant(connection)
        add_request(connection, "req_old", prompt="secret")
        connection.execute(update(requests).values(status="failed", ended_at_us=STARTED_US))
        retention.keep(connection, "ten_1", 30)
    raw = {
        "specversion": "1.0",
        "id": "event-1",
        "source": "vllm",
        "type": "dev.dflash.usage.reported.v1",
        "subject": "ten_1",
        "time": "2026-10-01T00:00:00Z",
        "data": {"model": "other", "input_tokens": 1, "output_tokens": 2},
    }
    read = envelopes.read(
        json.dumps(raw).encode(), source="vllm", tenant_ids=frozenset({"ten_1"}), now_us=now
    )
    assert isinstance(read, OutsideEvent)
    intake.take(sqlite_database, "mkey_1", [read])
    running = usage_chores(sqlite_database, settler)
    running.start()
    finished = threading.Event()
    for _ in range(500):
        with snapshot(sqlite_database) as connection:
            settled = outside.waiting(connection).events == 0
            rolled = bool(rollups.read(connection, "ten_1", "day", 0, FAR_US))
            kept = connection.scalar(
                select(func.count()).select_from(requests).where(requests.c.prompt == '"secret"')
            )
        if settled and rolled and not kept:
            break
        finished.wait(0.02)
    running.close()
    assert (settled, rolled, kept) == (True, True, 0)
