"""The ledger as a machine: anything that can happen to money, in any order, twice, on both bases.

After every step the books are square, no guarded account is negative, projections equal the
transfers, and each tenant's grants equal what it has, holds and paid. At the end of every run all
books reconcile.
"""

from __future__ import annotations

import itertools
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from billing_cases import energy, summary, tariff, unit
from billing_world import (
    STARTED_US,
    add_request,
    add_tenant,
    balances,
    books_balance,
    emit,
    hold_state,
    settlement,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, Engine, func, select

from billing import review
from billing.errors import (
    CostCeilingTooLow,
    HoldConflict,
    InsufficientCredit,
    ReviewConflict,
    TransferConflict,
)
from billing.gate import HoldGate
from billing.ledger import credits, holds
from billing.rating import rate
from billing.reconciliation import reconcile
from billing.review import ReviewState
from billing.review_items import items
from billing.settlement import Settlement
from billing.tables import adjustments, receipts
from metering import clock
from metering import requests as usage
from metering.database import open_database, snapshot, transaction
from metering.events import EndedBy, RequestStatus, RequestSummary
from metering.requests import AdmittedRequest

TERMS = tariff(
    input={"per_million": "10"},
    output={
        "per_million": "40",
        "units": {"complete": "0.9", "fragment": "1.25"},
        "tiers": {"reduced": "0.85", "review": "0.5"},
    },
    review={"fee": "0.0003"},
    energy={"per_million": {"estimated": "1"}, "cap_joules_per_token": "2"},
    request={"fee": "0.00001", "minimum": "0.00002"},
)
TENANTS = ("ten_modest", "ten_wary", "ten_rich")
CREDIT = {"ten_modest": "0.004", "ten_wary": "0.01", "ten_rich": "0.05"}
REVIEWERS = ("key_anna", "key_ben")
HOLD_US = 60 * 10**6

units = st.builds(
    unit,
    st.integers(0, 12),
    st.sampled_from(["complete", "fragment"]),
    st.sampled_from(["standard", "reduced", "review", None]),
)


class Crash(Exception):
    """The process dies before its commit."""


class Money(RuleBasedStateMachine):
    """Drives billing the way admission, recorder, sweeper and reviewers do."""

    new_database: Callable[[], str]
    drop_database: Callable[[str], None]
    settlement: Settlement

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.now_us = STARTED_US
        self.clock = clock.now_us
        clock.now_us = lambda: self.now_us
        self.url = type(self).new_database()
        self.database: Engine = open_database(self.url)
        self.gate = HoldGate(lookahead_tokens=8)
        self.grants: dict[tuple[str, str], int] = {}
        self.admitted: dict[str, AdmittedRequest] = {}
        self.output: dict[str, tuple[Any, ...]] = defaultdict(tuple)
        self.ended: dict[str, RequestSummary] = {}
        self.resolved: dict[str, str] = {}  # holds that are final, and how
        self.tokens: dict[str, tuple[str, int]] = {}
        self.numbers = itertools.count()
        with transaction(self.database) as connection:
            self.settlement._signer.register(connection)
            for tenant_id in TENANTS:
                opted_in = tenant_id == "ten_wary"
                add_tenant(
                    connection, tenant_id, credit=CREDIT[tenant_id], opt_in=opted_in, pays=TERMS
                )

    def teardown(self) -> None:
        try:
            with snapshot(self.database) as connection:
                assert reconcile(connection).differences == ()
        finally:
            clock.now_us = self.clock
            self.database.dispose()
            type(self).drop_database(self.url)

    @contextmanager
    def committing(self, crashes: bool = False) -> Iterator[Connection]:
        """A transaction; one that crashes leaves nothing behind."""
        try:
            with transaction(self.database) as connection:
                yield connection
                if crashes:
                    raise Crash
        except Crash:
            pass

    @rule(
        tenant=st.sampled_from(TENANTS),
        amount=st.integers(1, 5 * 10**6),
        cause=st.sampled_from("abc"),
        crashes=st.booleans(),
    )
    def grant(self, tenant: str, amount: int, cause: str, crashes: bool) -> None:
        known = self.grants.get((tenant, cause))
        with self.committing(crashes) as connection:
            if known is not None and known != amount:
                with pytest.raises(TransferConflict):
                    credits.grant(connection, tenant, amount, cause)
            else:
                assert credits.grant(connection, tenant, amount, cause) is (known is None)
                if not crashes:
                    self.grants[tenant, cause] = amount

    @rule(
        target=live,
        tenant=st.sampled_from(TENANTS),
        max_cost=st.none() | st.integers(0, 2 * 10**6),
        max_tokens=st.integers(1, 60),
        test_mode=st.sampled_from([False, False, False, True]),
        crashes=st.sampled_from([False, False, True]),
    )
    def admit(
        self,
        tenant: str,
        max_cost: int | None,
        max_tokens: int,
        test_mode: bool,
        crashes: bool,
    ) -> Any:
        request_id = f"req_{next(self.numbers)}"
        try:
            with transaction(self.database) as connection:
                request = add_request(
                    connection,
                    request_id,
                    tenant,
                    max_tokens=max_tokens,
                    max_cost_nano=max_cost,
                    test_mode=test_mode,
                )
                self.gate.admit(connection, request, expires_at_us=self.now_us + HOLD_US)
                if crashes:
                    raise Crash
        except (InsufficientCredit, CostCeilingTooLow, Crash):
            return multiple()
        self.admitted[request_id] = request
        return request_id

    @rule(request_id=live)
    def admit_again(self, request_id: str) -> None:
        request = self.admitted[request_id]
        with transaction(self.database) as connection:
            self.gate.admit(connection, request, expires_at_us=self.now_us + HOLD_US)

    @rule(request_id=live, added=st.lists(units, min_size=1, max_size=4), crashes=st.booleans())
    def commit_a_block(self, request_id: str, added: list[Any], crashes: bool) -> None:
        if request_id in self.ended:
            return
        text = (*self.output[request_id], *added)
        stopped = self.summarise(request_id, text)
        if stopped.output_tokens > self.admitted[request_id].max_tokens:
            return
        covered = False
        with self.committing(crashes) as connection:
            covered = bool(self.gate.cover(connection, stopped))
            if covered and not self.admitted[request_id].test_mode:
                hold = holds.find(connection, request_id)
                assert hold is not None
                price = rate(stopped, TERMS, review_fee=self.opted_in(request_id)).total_nano
                assert hold.amount_nano >= price
                assert hold.ceiling_nano is None or hold.amount_nano <= hold.ceiling_nano
        if covered and not crashes:
            self.output[request_id] = text

    @rule(
        request_id=live,
        ended_by=st.sampled_from(EndedBy),
        reason=st.sampled_from([None, "request_confidence", "audit", "missing_score"]),
        uj=st.integers(0, 10**9),
        crashes=st.sampled_from([False, False, True]),
    )
    def settle(
        self, request_id: str, ended_by: EndedBy, reason: str | None, uj: int, crashes: bool
    ) -> None:
        if request_id in self.ended:
            with transaction(self.database) as connection:
                self.settlement.settle(connection, self.ended[request_id])
            return
        final = msgspec.structs.replace(
            self.summarise(request_id, self.output[request_id]),
            ended_by=ended_by,
            review_reason=reason,
            energy=energy("estimated", uj),
            ended_at_us=self.now_us,
            status=RequestStatus.COMPLETED,
        )
        with self.committing(crashes) as connection:
            usage.finalise(connection, final, "text")
            emit(connection, final)
            self.settlement.settle(connection, final)
            self.settlement.settle(connection, final)
        if not crashes:
            self.ended[request_id] = final

    @rule(request_id=live)
    def void_what_never_ran(self, request_id: str) -> None:
        if self.output[request_id] or request_id in self.ended:
            return
        with transaction(self.database) as connection:
            if hold_state(connection, request_id) in {"pending", "voided"}:
                holds.void(connection, request_id)
            else:
                with pytest.raises(HoldConflict):
                    holds.void(connection, request_id)
        # A voided hold belongs to a request that ends at once.
        self.settle(request_id, EndedBy.OPERATOR, None, 0, False)

    @rule(request_id=live)
    def renew(self, request_id: str) -> None:
        with transaction(self.database) as connection:
            holds.renew(connection, [request_id], self.now_us + HOLD_US)

    @rule(elapsed_us=st.integers(0, 2 * HOLD_US))
    def sweep(self, elapsed_us: int) -> None:
        self.now_us += elapsed_us
        with transaction(self.database) as connection:
            holds.expire(connection, self.now_us)
            review.lapse(connection, self.now_us, self.settlement._signer)

    @rule()
    def let_reviews_lapse(self) -> None:
        self.sweep(review.SLA_US)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), reviewer=st.sampled_from(REVIEWERS))
    def claim(self, data: st.DataObject, reviewer: str) -> None:
        with transaction(self.database) as connection:
            waiting = items(connection, ReviewState.QUEUED, 5)
            waiting += items(connection, ReviewState.CLAIMED, 5)
            if not waiting:
                return
            item = data.draw(st.sampled_from(waiting))
            try:
                token = review.claim(connection, item.id, reviewer)
            except ReviewConflict:
                return
            assert token == item.claim_token + 1
        self.tokens[item.id] = (reviewer, token)

    @precondition(lambda self: self.tokens)
    @rule(
        data=st.data(),
        verdict=st.sampled_from(["approve", "edit", "reject"]),
        wrong=st.sampled_from([0, 0, 0, -1, 1]),
        crashes=st.sampled_from([False, False, True]),
    )
    def resolve(self, data: st.DataObject, verdict: str, wrong: int, crashes: bool) -> None:
        item_id = data.draw(st.sampled_from(sorted(self.tokens)))
        reviewer, token = self.tokens[item_id]
        edited = "better" if verdict == "edit" else None
        try:
            with self.committing(crashes) as connection:
                for _ in range(2):
                    review.resolve(
                        connection,
                        item_id,
                        reviewer,
                        token + wrong,
                        verdict=verdict,
                        signer=self.settlement._signer,
                        edited_output=edited,
                    )
                assert not wrong
        except ReviewConflict:
            pass

    @invariant()
    def every_book_is_square(self) -> None:
        with snapshot(self.database) as connection:
            books_balance(connection)
            for tenant_id in TENANTS:
                self.check_tenant(connection, tenant_id)
            for request_id in self.admitted:
                state = hold_state(connection, request_id)
                assert state is not None
                assert self.resolved.get(request_id, state) == state
                if state != "pending":
                    self.resolved[request_id] = state
            for request_id in self.ended:
                assert self.resolved.get(request_id) is not None

    def check_tenant(self, connection: Connection, tenant_id: str) -> None:
        granted = round(float(CREDIT[tenant_id]) * 10**9)
        granted += sum(nano for (owner, _), nano in self.grants.items() if owner == tenant_id)
        paid, adjusted = (
            int(
                connection.scalar(
                    select(func.coalesce(func.sum(column), 0)).where(owner == tenant_id)
                )
            )
            for column, owner in (
                (receipts.c.total_nano, receipts.c.tenant_id),
                (adjustments.c.amount_nano, adjustments.c.tenant_id),
            )
        )
        kinds = balances(connection, tenant_id)
        had = kinds.get("tenant_credit", 0) + kinds.get("holds", 0)
        assert granted == had + paid + adjusted

    def opted_in(self, request_id: str) -> bool:
        return self.admitted[request_id].tenant_id == "ten_wary"

    def summarise(self, request_id: str, text: tuple[Any, ...]) -> RequestSummary:
        request = self.admitted[request_id]
        return summary(
            *text,
            unattached_tokens=0,
            request_id=request_id,
            tenant_id=request.tenant_id,
            tariff_version_id=request.tariff_version_id,
            input_tokens=request.input_tokens,
            status=RequestStatus.RUNNING,
            started_at_us=request.started_at_us,
        )


def drive(
    new_database: Callable[[], str],
    drop_database: Callable[[str], None],
    folder: Path,
    examples: int,
) -> None:
    machine = type(
        "MoneyMachine",
        (Money,),
        {
            "new_database": staticmethod(new_database),
            "drop_database": staticmethod(drop_database),
            "settlement": settlement(folder),
        },
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_money_is_conserved_whatever_happens_on_sqlite(
    sqlite_template: Path, tmp_path: Path
) -> None:
    numbers = itertools.count()

    def new_database() -> str:
        path = tmp_path / f"{next(numbers)}.db"
        shutil.copyfile(sqlite_template, path)
        return f"sqlite:///{path}"

    def drop_database(url: str) -> None:
        Path(url.removeprefix("sqlite:///")).unlink()

    drive(new_database, drop_database, tmp_path, examples=40)


def test_money_is_conserved_whatever_happens_on_postgresql(
    postgres_server: Any, tmp_path: Path
) -> None:
    drive(lambda: postgres_server.create(tables=True), postgres_server.drop, tmp_path, examples=25)
