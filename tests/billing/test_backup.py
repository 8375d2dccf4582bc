"""A backup taken while money moves is one state of the books, and reconciles when restored."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from billing_cases import summary
from billing_sweeps import expire_holds
from billing_world import FAR_US, add_request, add_tenant, emit, ended, settlement
from sqlalchemy import Engine

from billing import budgets
from billing.gate import HoldGate
from billing.ledger import balances, grants
from billing.reconciliation import reconcile
from metering.database import open_database, snapshot, transaction


def test_a_backup_taken_amid_the_writes_reconciles_when_it_is_restored(
    sqlite_database: Engine, sqlite_url: str, tmp_path: Path
) -> None:
    settler = settlement(tmp_path)
    with transaction(sqlite_database) as connection:
        settler._signer.register(connection)
        add_tenant(connection)
        grants.issue(connection, "ten_1", 50_000, "lot", promotional=True, priority=1)
        budgets.define(connection, "ten_1", limit_nano=10**9, period="ever", hard=True)
    stopped = threading.Event()
    backed_up = threading.Event()

    def work() -> int:
        number = 0
        while not (stopped.is_set() and number > 20):
            with transaction(sqlite_database) as connection:
                request = add_request(connection, f"req_{number}")
                HoldGate().admit(connection, request, expires_at_us=FAR_US)
            with transaction(sqlite_database) as connection:
                final = ended(connection, settler, summary(request_id=request.id))
                emit(connection, final)
            number += 1
            backed_up.set()
        return number

    worker = threading.Thread(target=work)
    worker.start()
    backed_up.wait(10)
    source = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    target = sqlite3.connect(tmp_path / "restored.db")
    source.backup(target, pages=5)
    stopped.set()
    worker.join()
    source.close()
    target.close()
    restored = open_database(f"sqlite:///{tmp_path / 'restored.db'}")
    with snapshot(restored) as connection:
        found = reconcile(connection)
        assert found.differences == ()
        assert found.totals.requests > 0
        assert balances.balance(connection, "ten_1").promotional_nano < 50_000
    # It goes on from there: what was live is swept, and nothing is lost.
    with transaction(restored) as connection:
        expire_holds(connection, FAR_US)
        assert reconcile(connection).differences == ()
    restored.dispose()
