"""Money under threads: on PostgreSQL many writers at once, on SQLite one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from billing_cases import summary, tariff
from billing_sweeps import expire_holds, lapse_reviews
from billing_world import (
    FAR_US,
    add_request,
    add_tenant,
    balances,
    books_balance,
    ended,
    hold_state,
    settlement,
)
from sqlalchemy import Engine

from billing import review
from billing.errors import InsufficientCredit, ReviewConflict
from billing.gate import HoldGate
from billing.ledger import credits, holds
from billing.money import NANO, format_nano
from metering.database import snapshot, transaction

T = TypeVar("T")
THREADS = 6


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run jobs in threads that start together; their results, in order."""
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        start.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(run, job) for job in jobs]]


@pytest.mark.parametrize("affordable", [0, 1, 4])
def test_parallel_admissions_against_credit_for_k_admit_exactly_k(
    database: Engine, affordable: int
) -> None:
    gate = HoldGate(lookahead_tokens=10)
    hold_nano = 20 * 100 + 10 * 400  # of the factory's tariff: 20 tokens in, 10 out
    with transaction(database) as connection:
        add_tenant(connection, credit=format_nano(affordable * hold_nano + hold_nano // 2))

    def admit(number: int) -> bool:
        try:
            with transaction(database) as connection:
                request = add_request(connection, f"req_{number}")
                gate.admit(connection, request, expires_at_us=FAR_US)
        except InsufficientCredit:
            return False
        return True

    admitted = at_once([lambda number=number: admit(number) for number in range(THREADS)])
    assert sum(admitted) == affordable
    with snapshot(database) as connection:
        books_balance(connection)
        assert balances(connection).get("holds", 0) == affordable * hold_nano
        states = [hold_state(connection, f"req_{number}") for number in range(THREADS)]
    assert states.count("pending") == affordable


def test_one_cause_booked_by_many_at_once_is_booked_once(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="0")

    def grant() -> bool:
        with transaction(database) as connection:
            return credits.grant(connection, "ten_1", 700, "webhook-1")

    assert sum(at_once([grant] * THREADS)) == 1
    with snapshot(database) as connection:
        books_balance(connection)
        assert balances(connection) == {"tenant_credit": 700}


def test_a_request_settled_by_many_at_once_pays_once(database: Engine, tmp_path: Path) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        add_tenant(connection)
        request = add_request(connection)
        HoldGate().admit(connection, request, expires_at_us=FAR_US)
    final = msgspec.structs.replace(summary(), tariff_version_id=request.tariff_version_id)

    def settle() -> None:
        with transaction(database) as connection:
            settler.settle(connection, final)

    at_once([settle] * THREADS)
    with snapshot(database) as connection:
        books_balance(connection)
        assert balances(connection)["earnings"] == 20 * 100 + 10 * 400


def test_tenants_at_work_never_block_a_sweep_nor_each_other(
    database: Engine, tmp_path: Path
) -> None:
    """Admissions, extensions and settlements of three tenants beside a sweep in a loop."""
    settler = settlement(tmp_path)
    gate = HoldGate(lookahead_tokens=4)
    with transaction(database) as connection:
        settler._signer.register(connection)
        for tenant in range(3):
            terms = tariff(
                input={"per_million": "0.1"},
                output={"per_million": "0.4"},
                review={"fee": "0.001"},
            )
            add_tenant(connection, f"ten_{tenant}", credit="1", opt_in=True, pays=terms)
    done = threading.Event()

    def serve(tenant: int) -> int:
        for number in range(8):
            request_id = f"req_{tenant}_{number}"
            with transaction(database) as connection:
                request = add_request(connection, request_id, f"ten_{tenant}")
                gate.admit(connection, request, expires_at_us=FAR_US)
            final = summary(
                request_id=request_id,
                tenant_id=f"ten_{tenant}",
                tariff_version_id=request.tariff_version_id,
                review_reason="audit" if number % 2 else "request_confidence",
            )
            with transaction(database) as connection:
                assert gate.cover(connection, final)
            with transaction(database) as connection:
                ended(connection, settler, final)
        return 0

    def sweep() -> int:
        lapsed = 0
        while not done.is_set():
            with transaction(database) as connection:
                live = [f"req_{tenant}_{number}" for tenant in range(3) for number in range(8)]
                holds.renew(connection, live, FAR_US + 1)
                expire_holds(connection, 1)
                lapsed += lapse_reviews(connection, FAR_US, settler._signer)
        return lapsed

    with ThreadPoolExecutor(1) as pool:
        sweeping = pool.submit(sweep)
        at_once([lambda tenant=tenant: serve(tenant) for tenant in range(3)])
        done.set()
        lapsed = sweeping.result()
    with transaction(database) as connection:
        lapsed += lapse_reviews(connection, FAR_US, settler._signer)
        assert lapsed == 24
        books_balance(connection)
        for tenant in range(3):
            kinds = balances(connection, f"ten_{tenant}")
            assert kinds == {"tenant_credit": NANO - 8 * 6_000, "earnings": 8 * 6_000}


def test_two_reviewers_never_resolve_the_same_item(database: Engine, tmp_path: Path) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection)
        for number in range(4):
            request = add_request(connection, f"req_{number}")
            HoldGate().admit(connection, request, expires_at_us=FAR_US)
            ended(connection, settler, summary(request_id=request.id, review_reason="audit"))

    def work(reviewer: str) -> list[str]:
        resolved = []
        for number in range(4):
            item_id = f"rev_req_{number}"
            try:
                with transaction(database) as connection:
                    # A lease of nothing: everybody may take the item from everybody.
                    token = review.claim(connection, item_id, reviewer, lease_us=0)
                with transaction(database) as connection:
                    review.resolve(
                        connection,
                        item_id,
                        reviewer,
                        token,
                        verdict="approve",
                        signer=settler._signer,
                    )
            except ReviewConflict:
                continue
            resolved.append(item_id)
        return resolved

    resolved = at_once([lambda name=f"key_{name}": work(name) for name in range(4)])
    names = [item_id for each in resolved for item_id in each]
    assert len(names) == len(set(names))
    with snapshot(database) as connection:
        books_balance(connection)
        for number in range(4):
            item = review.item(connection, f"rev_req_{number}")
            winner = [f"key_{index}" for index, each in enumerate(resolved) if item.id in each]
            assert [item.resolved_by] == (winner or [None])
