"""Chores: they do their work, go on after a failure, and end when they are told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from billing_cases import STARTED_US, energy, summary
from billing_world import FAR_US, add_request, add_tenant, settlement
from sqlalchemy import Engine, func, select, update
from structlog.testing import capture_logs

from api import chores
from api.chores import Chores, sweep_chores, usage_chores
from billing import outside, retention
from billing.credit_tables import grants as grants_table
from billing.ledger import grants, holds
from billing.signing import Signer
from billing.tables import holds as holds_table
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


def test_a_tenant_that_cannot_be_swept_keeps_nothing_else_waiting(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given three tenants with an orphaned hold and a late grant, and the second's hold broken;
    when it was swept; then the others' are over, the second's grant is, and its hold is reported.
    """
    monkeypatch.setattr(clock, "now_us", lambda: STARTED_US)
    late_us = STARTED_US + 1
    with transaction(database) as connection:
        for tenant_id in ("ten_1", "ten_2", "ten_3"):
            add_tenant(connection, tenant_id)
            add_request(connection, f"req_{tenant_id}", tenant_id)
            holds.place(
                connection,
                request_id=f"req_{tenant_id}",
                tenant_id=tenant_id,
                currency="USD",
                amount_nano=7,
                ceiling_nano=None,
                expires_at_us=late_us,
            )
            grants.issue(connection, tenant_id, 5, "late", expires_at_us=late_us)
        broken = update(holds_table).where(holds_table.c.tenant_id == "ten_2")
        connection.execute(broken.values(amount_nano=8))  # more than was taken
    monkeypatch.setattr(clock, "now_us", lambda: late_us)
    renewed: list[None] = []

    def keep() -> None:
        raise OSError("the lock's connection went away")

    with capture_logs() as logged:
        _sweep(database, tmp_path, [keep, lambda: renewed.append(None)])
    with snapshot(database) as connection:
        states = connection.execute(select(holds_table.c.tenant_id, holds_table.c.state))
        assert dict(states.all()) == {
            "ten_1": "expired",
            "ten_2": "pending",
            "ten_3": "expired",
        }
        left = connection.scalars(select(grants_table.c.remaining_nano)).all()
    assert left == [0, 0, 0]
    failed = [each.get("tenant_id") for each in logged if each["event"] == "chore.failed"]
    assert set(failed) == {None, "ten_2"}  # the lock is nobody's
    assert renewed


def test_a_sweep_that_finds_nothing_waits_for_no_writer(
    sqlite_database: Engine, tmp_path: Path
) -> None:
    with transaction(sqlite_database) as connection:
        add_tenant(connection)
    with transaction(sqlite_database):
        _sweep(sqlite_database, tmp_path, [])


def _sweep(database: Engine, folder: Path, keeping: list[Callable[[], None]]) -> None:
    """Sweep for two rounds at least."""
    rounds = 0
    over = threading.Event()

    def count() -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 2:
            over.set()

    sweeping = sweep_chores(database, 0.001, Signer.open(folder / "key.pem"), [*keeping, count])
    sweeping.start()
    assert over.wait(10)
    sweeping.close()


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
    with capture_logs() as logged:
        # Three tenants, and round again for there was work: only the second is left, and fails.
        assert [step() for _ in range(6)] == [True] * 5 + [False]
    failed = [each["tenant_id"] for each in logged if each["event"] == "chore.failed"]
    assert failed == ["ten_2", "ten_2"]
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
