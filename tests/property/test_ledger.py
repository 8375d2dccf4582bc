"""The ledger as a machine: anything that can happen to money, in any order, twice, on both bases.

After every step the books are square, no guarded account is negative, projections equal the
transfers, and each tenant's grants equal what it has, holds and paid. At the end of every run all
books reconcile.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, Engine, Subquery, func, select

from billing import budgets, credit_checks, outside, refunds, review
from billing.credit_tables import budget_windows
from billing.credit_tables import budgets as budget_tables
from billing.errors import (
    BudgetExhausted,
    CostCeilingTooLow,
    HoldConflict,
    InsufficientCredit,
    NothingToReverse,
    ReviewConflict,
    TransferConflict,
)
from billing.gate import HoldGate
from billing.ledger import credits, grants, holds, terms
from billing.rating import rate
from billing.receipt_documents import iso
from billing.reconciliation import reconcile
from billing.review import ReviewState
from billing.review_items import items
from billing.settlement import Settlement
from billing.signing import Signer
from billing.tables import accounts, adjustments, receipts, transfers
from billing.tables import holds as holds_table
from metering import clock
from metering import requests as usage
from metering.database import open_database, snapshot, transaction
from metering.events import EndedBy, RequestStatus, RequestSummary, UnitSummary
from metering.ingestion import envelopes, intake
from metering.ingestion.envelopes import OutsideEvent
from metering.ingestion.intake import Result
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


verdicts = st.sampled_from(["approve", "edit", "reject"])
sometimes = st.sampled_from([False] * 7 + [True])
orders = st.fixed_dictionaries(
    {
        "max_cost_nano": st.sampled_from([None, None, 0, 280_000, 500_000, 900_000]),
        "max_tokens": st.integers(1, 80),
        "test_mode": sometimes,
    }
)
# Tokens that no gate was asked about: what only a defect would emit must not break the books.
overruns = st.sampled_from([0, 0, 0, 60, 2_000])
ends = st.fixed_dictionaries(
    {
        "ended_by": st.sampled_from(EndedBy),
        "review_reason": st.sampled_from(
            [None, "request_confidence", "unit_confidence", "audit", "missing_score"]
        ),
        "energy": st.sampled_from([0, 40 * 10**6, 10**9]).map(lambda uj: energy("estimated", uj)),
    }
)


def reported(tenant_id: str, number: int, late_us: int) -> bytes:
    """An outside event, as its engine sends it."""
    return json.dumps(
        {
            "specversion": "1.0",
            "id": f"event-{number}",
            "source": "vllm",
            "type": "dev.dflash.usage.reported.v1",
            "subject": tenant_id,
            "time": iso(STARTED_US - late_us),
            "data": {"model": "other", "input_tokens": 7, "output_tokens": 9},
        }
    ).encode()


def hard_windows() -> Subquery:
    """Every window of every hard budget."""
    columns = (budget_windows.c.reserved_nano, budget_tables.c.limit_nano)
    joined = select(*columns).join(budget_tables, budget_tables.c.id == budget_windows.c.budget_id)
    return joined.where(budget_tables.c.kind == "hard").subquery()


class Crash(Exception):
    """The process dies before its commit."""


class Money(RuleBasedStateMachine):
    """Drives billing the way admission, recorder, sweeper and reviewers do."""

    new_database: Callable[[], str]
    drop_database: Callable[[str], None]
    settlement: Settlement

    def __init__(self) -> None:
        super().__init__()
        self.now_us = STARTED_US
        self.clock = clock.now_us
        clock.now_us = lambda: self.now_us
        self.url = type(self).new_database()
        self.database: Engine = open_database(self.url)
        self.gate = HoldGate(lookahead_tokens=8)
        self.lots: list[tuple[str, str]] = []
        self.reported: dict[tuple[str, int], int] = {}
        self.grants: dict[tuple[str, str], int] = {}
        self.admitted: dict[str, AdmittedRequest] = {}
        self.running: dict[str, tuple[UnitSummary, ...]] = {}  # with the text committed so far
        self.ended: dict[str, RequestSummary] = {}
        self.resolved: dict[str, str] = {}  # holds that are final, and how
        self.claims: dict[str, tuple[str, int]] = {}
        self.numbers = itertools.count()
        with transaction(self.database) as connection:
            self.signer.register(connection)
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

    @property
    def signer(self) -> Signer:
        return self.settlement._signer

    @contextmanager
    def committing(self, crashes: bool) -> Iterator[Connection]:
        """A transaction; one that crashes leaves nothing behind."""
        with suppress(Crash), transaction(self.database) as connection:
            yield connection
            if crashes:
                raise Crash

    @rule(
        tenant=st.sampled_from(TENANTS),
        amount=st.sampled_from([1, 1_000, 300_000, 5_000_000]),
        cause=st.sampled_from("ab"),
        crashes=sometimes,
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
        tenant=st.sampled_from(TENANTS),
        amount=st.sampled_from([1, 1_000, 300_000, 5_000_000]),
        promotional=st.booleans(),
        priority=st.sampled_from([1, 100, 500]),
        lasts_us=st.sampled_from([None, HOLD_US // 2, HOLD_US, 3 * HOLD_US]),
        begins_us=st.sampled_from([0, 0, 0, HOLD_US]),
        crashes=sometimes,
    )
    def issue(
        self,
        *,
        tenant: str,
        amount: int,
        promotional: bool,
        priority: int,
        lasts_us: int | None,
        begins_us: int,
        crashes: bool,
    ) -> None:
        cause = f"lot-{next(self.numbers)}"
        starts = self.now_us + begins_us
        with self.committing(crashes) as connection:
            for first in (True, False):
                issued = grants.issue(
                    connection,
                    tenant,
                    amount,
                    cause,
                    promotional=promotional,
                    priority=priority,
                    effective_from_us=starts,
                    expires_at_us=None if lasts_us is None else starts + lasts_us,
                )
                assert issued is first
        if not crashes:
            self.grants[tenant, cause] = amount
            self.lots.append((tenant, cause))

    @precondition(lambda self: self.lots)
    @rule(data=st.data(), crashes=sometimes)
    def reverse_a_lot(self, data: st.DataObject, crashes: bool) -> None:
        tenant, cause = data.draw(st.sampled_from(self.lots))
        with suppress(NothingToReverse), self.committing(crashes) as connection:
            grants.reverse(connection, tenant, cause)

    @rule(tenant=st.sampled_from(TENANTS), limit=st.sampled_from([0, 400_000, 10**7, 10**9]))
    def change_terms(self, tenant: str, limit: int) -> None:
        with transaction(self.database) as connection:
            terms.change(
                connection, tenant, receivable_limit_nano=limit, alert_below_nano=1_000_000
            )

    @rule(
        tenant=st.sampled_from(TENANTS),
        limit=st.sampled_from([0, 500_000, 2_000_000, 10**9]),
        hard=st.booleans(),
        period=st.sampled_from(["day", "ever"]),
    )
    def budget(self, tenant: str, limit: int, hard: bool, period: str) -> None:
        with transaction(self.database) as connection:
            for open_one in budgets.standings(connection, tenant, self.now_us)[1:]:
                budgets.close(connection, tenant, open_one.budget.id)
            budgets.define(connection, tenant, limit_nano=limit, hard=hard, period=period)

    @precondition(lambda self: self.ended)
    @rule(
        data=st.data(),
        amount=st.sampled_from([None, 1, 100_000]),
        reference=st.sampled_from("xy"),
        crashes=sometimes,
    )
    def correct(
        self, data: st.DataObject, amount: int | None, reference: str, crashes: bool
    ) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.ended)))
        with suppress(NothingToReverse), self.committing(crashes) as connection:
            terms_of_it = {
                "tenant_id": self.admitted[request_id].tenant_id,
                "request_id": request_id,
                "amount_nano": amount,
                "reference": reference,
                "reason": "counted twice",
            }
            refunds.correct(connection, self.signer, **terms_of_it)
            assert refunds.correct(connection, self.signer, **terms_of_it) == 0

    @rule(tenant=st.sampled_from(TENANTS), number=st.integers(0, 3), late_us=st.integers(0, 99))
    def report(self, tenant: str, number: int, late_us: int) -> None:
        """Another engine reports usage, again and again, and it is rated once."""
        raw = reported(tenant, number, self.reported.setdefault((tenant, number), late_us))
        read = envelopes.read(raw, source="vllm", tenant_ids=frozenset(TENANTS), now_us=self.now_us)
        assert isinstance(read, OutsideEvent)
        (answer,) = intake.take(self.database, "mkey_1", [read])
        assert answer.result in {Result.ACCEPTED, Result.DUPLICATE}
        outside.settle_waiting(self.database, self.settlement)

    @rule(tenant=st.sampled_from(TENANTS), order=orders, crashes=sometimes)
    def admit(self, tenant: str, order: dict[str, Any], crashes: bool) -> None:
        self.start(tenant, order, crashes)

    def start(self, tenant: str, order: dict[str, Any], crashes: bool = False) -> str | None:
        request_id = f"req_{next(self.numbers)}"
        try:
            with transaction(self.database) as connection:
                request = add_request(connection, request_id, tenant, **order)
                self.gate.admit(connection, request, expires_at_us=self.now_us + HOLD_US)
                self.gate.admit(connection, request, expires_at_us=self.now_us + HOLD_US)
                if crashes:
                    raise Crash
        except (InsufficientCredit, BudgetExhausted, CostCeilingTooLow, Crash):
            return None
        self.admitted[request_id] = request
        self.running[request_id] = ()
        return request_id

    @precondition(lambda self: self.running)
    @rule(data=st.data(), added=st.lists(units, min_size=1, max_size=4), crashes=sometimes)
    def commit_a_block(self, data: st.DataObject, added: list[UnitSummary], crashes: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        self.commit(request_id, added, crashes)

    def commit(self, request_id: str, added: list[UnitSummary], crashes: bool = False) -> None:
        text = (*self.running[request_id], *added)
        stopped = self.summarise(request_id, text)
        if stopped.output_tokens > self.admitted[request_id].max_tokens:
            return
        with self.committing(crashes) as connection:
            covered = bool(self.gate.cover(connection, stopped))
            if covered and not self.admitted[request_id].test_mode:
                hold = holds.find(connection, request_id)
                assert hold is not None
                fee = self.admitted[request_id].tenant_id == "ten_wary"
                assert hold.amount_nano >= rate(stopped, TERMS, review_fee=fee).total_nano
                assert hold.ceiling_nano is None or hold.amount_nano <= hold.ceiling_nano
        if covered and not crashes:
            self.running[request_id] = text

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=ends, overrun=overruns, crashes=sometimes)
    def settle(self, data: st.DataObject, end: dict[str, Any], overrun: int, crashes: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        if overrun:
            self.running[request_id] += (unit(overrun, "fragment"),)
        self.end(request_id, end, crashes)

    def end(self, request_id: str, end: dict[str, Any], crashes: bool = False) -> None:
        stopped = self.summarise(request_id, self.running[request_id])
        final = msgspec.structs.replace(
            stopped, **end, ended_at_us=self.now_us, status=RequestStatus.COMPLETED
        )
        with self.committing(crashes) as connection:
            usage.finalise(connection, final, "text")
            emit(connection, final)
            self.settlement.settle(connection, final)
        if not crashes:
            self.ended[request_id] = final
            del self.running[request_id]

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        with transaction(self.database) as connection:
            final = self.ended[data.draw(st.sampled_from(sorted(self.ended)))]
            self.settlement.settle(connection, final)

    @rule(
        tenant=st.sampled_from(TENANTS),
        order=orders,
        blocks=st.lists(st.lists(units, min_size=1, max_size=4), max_size=3),
        end=ends,
    )
    def serve(
        self,
        tenant: str,
        order: dict[str, Any],
        blocks: list[list[UnitSummary]],
        end: dict[str, Any],
    ) -> None:
        """A request from admission to its end, as most go."""
        request_id = self.start(tenant, order)
        if request_id is not None:
            for added in blocks:
                self.commit(request_id, added)
            self.end(request_id, end)

    @precondition(lambda self: any(not text for text in self.running.values()))
    @rule(data=st.data())
    def void_what_never_ran(self, data: st.DataObject) -> None:
        idle = sorted(request_id for request_id, text in self.running.items() if not text)
        request_id = data.draw(st.sampled_from(idle))
        with transaction(self.database) as connection:
            if hold_state(connection, request_id) == "pending":
                holds.void(connection, request_id)
                holds.void(connection, request_id)
            else:
                with pytest.raises(HoldConflict):
                    holds.void(connection, request_id)
        self.end(request_id, {"ended_by": EndedBy.OPERATOR})

    @precondition(lambda self: self.admitted)
    @rule()
    def renew(self) -> None:
        with transaction(self.database) as connection:
            holds.renew(connection, self.admitted, self.now_us + HOLD_US)

    @rule(elapsed_us=st.sampled_from([1, HOLD_US // 2, HOLD_US, HOLD_US, review.SLA_US]))
    def sweep(self, elapsed_us: int) -> None:
        self.now_us += elapsed_us
        with transaction(self.database) as connection:
            holds.expire(connection, self.now_us)
            grants.expire(connection, self.now_us)
            review.lapse(connection, self.now_us, self.signer)
            outlived = select(holds_table.c.request_id).where(
                holds_table.c.state == "pending", holds_table.c.expires_at_us <= self.now_us
            )
            assert connection.execute(outlived).all() == []

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), reviewer=st.sampled_from(REVIEWERS))
    def claim(self, data: st.DataObject, reviewer: str) -> None:
        self.take(data, reviewer)

    def take(self, data: st.DataObject, reviewer: str) -> str | None:
        with transaction(self.database) as connection:
            waiting = items(connection, ReviewState.QUEUED, 5)
            waiting += items(connection, ReviewState.CLAIMED, 5)
            if not waiting:
                return None
            item = data.draw(st.sampled_from(waiting))
            try:
                token = review.claim(connection, item.id, reviewer)
            except ReviewConflict:
                assert item.claimed_by != reviewer or item.due_at_us <= self.now_us
                return None
            assert token == item.claim_token + 1
        self.claims[item.id] = (reviewer, token)
        return item.id

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), verdict=verdicts, wrong=st.sampled_from([0, -1, 1]), crashes=sometimes)
    def resolve(self, data: st.DataObject, verdict: str, wrong: int, crashes: bool) -> None:
        self.judge(data.draw(st.sampled_from(sorted(self.claims))), verdict, wrong, crashes)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), reviewer=st.sampled_from(REVIEWERS), verdict=verdicts)
    def review_one(self, data: st.DataObject, reviewer: str, verdict: str) -> None:
        """A review from claim to verdict, as most go."""
        item_id = self.take(data, reviewer)
        if item_id is not None:
            self.judge(item_id, verdict)

    def judge(self, item_id: str, verdict: str, wrong: int = 0, crashes: bool = False) -> None:
        reviewer, token = self.claims[item_id]
        with suppress(ReviewConflict), self.committing(crashes) as connection:
            for _ in range(2):
                review.resolve(
                    connection,
                    item_id,
                    reviewer,
                    token + wrong,
                    verdict=verdict,
                    reasons=[] if verdict == "approve" else ["incorrect"],
                    signer=self.signer,
                    edited_output="better" if verdict == "edit" else None,
                )
            assert not wrong

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
            assert list(credit_checks.check(connection)) == []
            for window in connection.execute(select(hard_windows())):
                assert window.reserved_nano <= window.limit_nano
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
        gone = connection.scalar(
            select(func.coalesce(func.sum(transfers.c.amount_nano), 0))
            .join(accounts, accounts.c.id == transfers.c.debit_account_id)
            .where(accounts.c.tenant_id == tenant_id)
            .where(transfers.c.kind.in_(["expiry", "reversal"]))
        )
        kinds = balances(connection, tenant_id)
        # What is owed is accrued: its balance is below zero.
        means = ("tenant_credit", "promotional", "holds", "accrued")
        had = sum(kinds.get(kind, 0) for kind in means)
        assert granted - int(gone) == had + paid + adjusted

    def summarise(self, request_id: str, text: tuple[UnitSummary, ...]) -> RequestSummary:
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
    sqlite_template: Path, memory_path: Path, tmp_path: Path
) -> None:
    numbers = itertools.count()

    def new_database() -> str:
        path = memory_path / f"{next(numbers)}.db"
        shutil.copyfile(sqlite_template, path)
        return f"sqlite:///{path}"

    def drop_database(url: str) -> None:
        Path(url.removeprefix("sqlite:///")).unlink()

    drive(new_database, drop_database, tmp_path, examples=18)


def test_money_is_conserved_whatever_happens_on_postgresql(
    postgres_server: Any, tmp_path: Path
) -> None:
    drive(lambda: postgres_server.create(tables=True), postgres_server.drop, tmp_path, examples=10)
