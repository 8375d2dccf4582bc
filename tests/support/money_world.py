"""What the money machine stands on: its database and clock, what it has done, what must hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from billing_cases import STARTED_US, summary, tariff
from billing_world import add_tenant, balances, books_balance, hold_state
from databases import Databases, reopened
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from sqlalchemy import Connection, Engine, Subquery, func, select

from billing import credit_checks
from billing.credit_tables import budget_windows, fundings, grants
from billing.credit_tables import budgets as budget_tables
from billing.gate import HoldGate
from billing.invoices import checks
from billing.invoices.tables import invoices
from billing.reconciliation import reconcile
from billing.settlement import Settlement
from billing.signing import Signer
from billing.tables import accounts, adjustments, receipts, transfers
from billing.tariffs import Tariff
from metering import clock
from metering.database import snapshot, transaction
from metering.events import RequestStatus, RequestSummary, UnitSummary
from metering.requests import AdmittedRequest


def terms(output_per_million: str = "40") -> Tariff:
    """What everyone pays, until prices change."""
    return tariff(
        input={"per_million": "10"},
        output={
            "per_million": output_per_million,
            "units": {"complete": "0.9", "fragment": "1.25"},
            "tiers": {"reduced": "0.85", "review": "0.5"},
        },
        review={"fee": "0.0003"},
        energy={"per_million": {"estimated": "1"}, "cap_joules_per_token": "2"},
        request={"fee": "0.00001", "minimum": "0.00002"},
        period={
            "base": {"model": "flat", "amount": "0.75"},
            "share": {"model": "percentage", "percent": "10"},
        },
    )


TENANTS = ("ten_modest", "ten_wary", "ten_rich")
CREDIT = {"ten_modest": "0.004", "ten_wary": "0.01", "ten_rich": "0.05"}
HOLD_US = 60 * 10**6

sometimes = st.sampled_from([False] * 7 + [True])


def hard_windows() -> Subquery:
    """Every window of every hard budget."""
    columns = (budget_windows.c.reserved_nano, budget_tables.c.limit_nano)
    joined = select(*columns).join(budget_tables, budget_tables.c.id == budget_windows.c.budget_id)
    return joined.where(budget_tables.c.kind == "hard").subquery()


def check_lots(connection: Connection) -> None:
    """What left a grant of paid credit for good was charged before, and given back too late for it.

    The unused part of a hold is no such thing: it goes back to its grant, for the sweep to take.
    """
    used = func.coalesce(func.sum(fundings.c.amount_nano), 0)
    gone = select(func.coalesce(func.sum(transfers.c.amount_nano), 0))
    for lot in connection.execute(select(grants).where(grants.c.kind == "paid")):
        holders = select(fundings.c.request_id).where(fundings.c.source == lot.id)
        taken = connection.scalar(select(used).where(fundings.c.source == lot.id))
        out = connection.scalar(gone.where(transfers.c.reverses_id == lot.id))
        returned = connection.scalar(
            gone.where(
                transfers.c.request_id.in_(holders),
                transfers.c.kind.in_(["refund", "review_lapse"]),
                transfers.c.event_time_us >= (lot.expires_at_us or 2**62),
            )
        )
        turned = lot.amount_nano - lot.remaining_nano - int(taken) - int(out)
        assert 0 <= turned <= int(returned)


class Crash(Exception):
    """The process dies before its commit."""


class World(RuleBasedStateMachine):
    """Drives billing the way admission, recorder, sweeper and reviewers do."""

    databases: Databases
    settlement: Settlement

    def __init__(self) -> None:
        super().__init__()
        self.now_us = STARTED_US
        self.clock = clock.now_us
        clock.now_us = lambda: self.now_us
        self.url = self.databases.create(tables=True)
        self.database: Engine = reopened(self.url)
        self.gate = HoldGate(lookahead_tokens=8)
        self.lots: list[tuple[str, str]] = []
        self.reported: dict[tuple[str, int], bytes] = {}
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
                    connection, tenant_id, credit=CREDIT[tenant_id], opt_in=opted_in, pays=terms()
                )

    def teardown(self) -> None:
        try:
            assert list(checks.unbilled(self.database)) == []
            with snapshot(self.database) as connection:
                assert reconcile(connection).differences == ()
        finally:
            clock.now_us = self.clock
            self.database.dispose()
            self.databases.drop(self.url)

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
            check_lots(connection)
            # what comes so late that its month was passed over waits until somebody closes that
            skipped = "months are closed in their order"
            found = [each for each in checks.check(connection) if each.check != skipped]
            assert found == []
            for window in connection.execute(select(hard_windows())):
                assert window.reserved_nano <= window.limit_nano
            for request_id in self.ended:
                assert self.resolved.get(request_id) is not None

    def check_tenant(self, connection: Connection, tenant_id: str) -> None:
        """What a tenant was given is what it has and what it paid; once it has invoices, too,
        `checks` and reconciliation hold these to the ledger and to the receipts.
        """
        issued = select(invoices.c.id).where(invoices.c.tenant_id == tenant_id)
        if connection.execute(issued.limit(1)).one_or_none() is not None:
            return
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
