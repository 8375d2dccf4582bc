"""Whether a tenant is let in, and pays for reviews, is decided under its lock.

Two connections meet at the lock: whoever came first has committed before the other goes on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from api_cases import NOW_US, HeldClock
from api_door import BeforeTheLock, Door, furnished
from billing_cases import tariff
from billing_world import settlement
from sqlalchemy import Connection, Engine, select

from api import tenants
from api.errors import TenantSuspended
from billing import catalogue
from billing.ledger.balances import balance
from billing.tables import holds, receipts
from metering.database import snapshot, transaction
from metering.tables import requests

FEE_NANO = 10_000_000
REVIEWED = tariff(output={"per_million": "1"}, review={"fee": "0.01"})
Change = Callable[[Connection, str], object]


def suspended(connection: Connection, tenant_id: str) -> None:
    tenants.suspend(connection, tenant_id)


def withdrawn(connection: Connection, tenant_id: str) -> None:
    tenants.change(connection, tenant_id, review_opt_in=False)


def consenting(database: Engine) -> Door:
    """The door of a tenant that pays for reviews, and waits for them."""
    house = furnished(database, pays=REVIEWED)
    with transaction(database) as connection:
        tenants.change(connection, house.tenant_id, review_opt_in=True, review_delivery="held")
    return Door(database, house)


def changing(elsewhere: Engine, tenant_id: str, change: Change) -> Callable[[], None]:
    """Somebody who changes a tenant, and is done."""

    def done() -> None:
        with transaction(elsewhere) as connection:
            change(connection, tenant_id)

    return done


def admitted(database: Engine, request_id: str) -> tuple[bool, int]:
    """Whether an answer would be held for its review, and what was reserved for the request."""
    with snapshot(database) as connection:
        parameters, amount_nano = connection.execute(
            select(requests.c.parameters, holds.c.amount_nano)
            .join(holds, holds.c.request_id == requests.c.id)
            .where(requests.c.id == request_id)
        ).one()
    return bool(json.loads(parameters).get("held")), int(amount_nano)


def test_a_request_that_waited_while_its_tenant_was_suspended_is_refused(
    database: Engine, elsewhere: Engine, before_the_lock: BeforeTheLock, held_clock: HeldClock
) -> None:
    house = furnished(database)
    before_the_lock(changing(elsewhere, house.tenant_id, suspended))
    with pytest.raises(TenantSuspended):
        Door(database, house).admit()
    assert before_the_lock.is_passed
    with snapshot(database) as connection:
        assert connection.execute(select(requests.c.id)).all() == []
        assert balance(connection, house.tenant_id).held_nano == 0


def test_a_request_that_waited_while_consent_was_withdrawn_holds_neither_fee_nor_answer(
    database: Engine, elsewhere: Engine, before_the_lock: BeforeTheLock, held_clock: HeldClock
) -> None:
    door = consenting(database)
    with_review = admitted(database, door.admit())
    before_the_lock(changing(elsewhere, door.house.tenant_id, withdrawn))
    without = admitted(database, door.admit())
    assert before_the_lock.is_passed
    assert (with_review[0], without[0]) == (True, False)
    assert with_review[1] - without[1] == FEE_NANO


def test_a_request_that_is_settled_after_consent_was_withdrawn_pays_no_fee(
    database: Engine,
    elsewhere: Engine,
    before_the_lock: BeforeTheLock,
    held_clock: HeldClock,
    tmp_path: Path,
) -> None:
    door, settler = consenting(database), settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
    final = door.end(door.admit(), NOW_US, review_reason="request_confidence")
    before_the_lock(changing(elsewhere, door.house.tenant_id, withdrawn))
    with before_the_lock.transaction(database) as connection:
        settler.settle(connection, final)
    assert before_the_lock.is_passed
    with snapshot(database) as connection:
        document = json.loads(connection.execute(select(receipts.c.document)).scalar_one())
    assert document["review"] is None


@pytest.mark.parametrize("change", [suspended, withdrawn])
def test_a_tenant_changes_only_after_what_is_being_admitted(
    database: Engine,
    elsewhere: Engine,
    before_the_lock: BeforeTheLock,
    held_clock: HeldClock,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
) -> None:
    door = consenting(elsewhere)
    find = catalogue.tariff_in_force
    arrived, changed = threading.Event(), []

    def change_here() -> None:
        try:
            with before_the_lock.transaction(database) as connection:
                change(connection, door.house.tenant_id)
            changed.append(change)
        finally:
            arrived.set()  # it waited for nobody

    with ThreadPoolExecutor(1) as pool:
        waiting = []

        def found(connection: Connection, tenant_id: str, at_us: int) -> Any:
            if not waiting:
                before_the_lock(arrived.set)
                waiting.append(pool.submit(change_here))
                assert arrived.wait(30)
                assert changed == []
            return find(connection, tenant_id, at_us)

        monkeypatch.setattr(catalogue, "tariff_in_force", found)
        is_held, _ = admitted(database, door.admit())
        waiting[0].result(30)
    assert is_held
    assert changed == [change]
