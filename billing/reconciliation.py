"""Do all books tell the same story? From the engine's counters to the payment provider's invoices.

Reads one state of the database and changes nothing. Every figure is had twice, by different ways,
and each pair that differs is named. An empty list of differences is the proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from sqlalchemy import Connection, Engine, func, select

from billing import (
    catalogue,
    credit_checks,
    period_totals,
    periods,
    request_checks,
    signing,
    waiting_usage,
)
from billing.differences import Difference, as_far_as_readable
from billing.invoices import checks
from billing.ledger.accounts import NEVER_NEGATIVE, AccountKind
from billing.ledger.balances import currency_of
from billing.ledger.holds import HoldState
from billing.payments import comparison
from billing.payments.provider import Provider
from billing.period_totals import Ladder, PeriodTotals
from billing.request_evidence import Evidence, gather
from billing.review_items import OPEN_STATES
from billing.tables import accounts, holds, review_items, transfers
from metering.bodies import EnergyBody
from metering.database import snapshot
from metering.tables import engine_counters, meter_windows


@dataclass(slots=True)
class Totals:
    """What all requests' events come to, added up as they pass."""

    requests: int = 0
    events: int = 0
    blocks: int = 0
    tokens: int = 0
    energy_uj: int = 0
    lines: int = 0
    transfers: int = 0
    receipts: int = 0
    adjustments: int = 0

    def add(self, evidence: Evidence) -> None:
        """Count one request's evidence."""
        self.requests += 1
        self.events += len(evidence.events)
        blocks, tokens, _ = evidence.stated_blocks()
        self.blocks += blocks
        self.tokens += tokens
        for event in evidence.events:
            if isinstance(event, EnergyBody):
                self.energy_uj += event.energy_uj or 0
        self.lines += len(evidence.lines)
        self.transfers += len(evidence.transfers)
        self.receipts += evidence.receipt is not None
        self.adjustments += len(evidence.adjustments)


@dataclass(frozen=True, slots=True)
class Scope:
    """What to compare: everything, or one tenant's, or one period's.

    The engine's counters and the accounts know neither; they are compared with everything only.
    """

    tenant_id: str | None = None
    period: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self.tenant_id is None and self.period is None


EVERYTHING = Scope()


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What was compared, and every difference found."""

    differences: tuple[Difference, ...]
    totals: Totals
    periods: tuple[PeriodTotals, ...]
    provider: comparison.Counts | None = None  # null where no payment provider was asked

    @property
    def is_clean(self) -> bool:
        """Whether all books tell the same story."""
        return not self.differences


def reconcile(connection: Connection, scope: Scope = EVERYTHING) -> Reconciliation:
    """Compare what the database holds, within one snapshot. The provider is not asked.

    Raises UnknownTenant or InvalidPeriod for a scope that nothing could ever be in: no difference
    in nothing would be taken for a proof.
    """
    if scope.tenant_id is not None:
        currency_of(connection, scope.tenant_id)
    if scope.period is not None:
        periods.month(scope.period, "UTC")
    keys = signing.public_keys(connection)
    version = cache(lambda version_id: catalogue.version(connection, version_id))
    totals = Totals()
    ladder = Ladder(connection, scope.tenant_id, scope.period)
    differences: list[Difference] = []

    def of_request(evidence: Evidence) -> Iterator[Difference]:
        if ladder.add(evidence):
            totals.add(evidence)
            yield from request_checks.check(evidence, version, keys)

    for evidence in gather(connection, scope.tenant_id):
        differences += as_far_as_readable(evidence.request.id, of_request(evidence))
    compared = ladder.finish()
    waiting = waiting_usage.check(connection, scope.tenant_id, scope.period)
    of_all = {"periods": period_totals.check(compared), "reported usage": waiting}
    if scope.is_everything:
        of_all["the engine's counters"] = _engine(connection, totals)
        of_all["accounts"] = _projections(connection)
        of_all["holds and reviews"] = _open(connection)
        of_all["invoices"] = checks.check(connection)
        of_all["credit"] = credit_checks.check(connection)
    for subject, found in of_all.items():
        differences += as_far_as_readable(subject, found)
    return Reconciliation(tuple(differences), totals, compared)


def reconcile_with_provider(
    database: Engine, provider: Provider, scope: Scope = EVERYTHING
) -> Reconciliation:
    """Compare everything, and then what the provider has with what it was told.

    The provider is asked outside any transaction. Raises what `reconcile` does, ProviderFailed or
    ProviderRefused.
    """
    with snapshot(database) as connection:
        found = reconcile(connection, scope)
    told = comparison.compare(database, provider, scope.tenant_id, scope.period)
    for each in found.periods:
        sums = told.sums.get((each.tenant_id, each.period))
        if sums is not None:
            each.due_minor, each.provider_minor = sums
    return replace(found, differences=(*found.differences, *told.differences), provider=told.counts)


def _engine(connection: Connection, totals: Totals) -> Iterator[Difference]:
    """The engine's counters, and the meter, against the sum of all events."""
    emitted, withheld, blocks = connection.execute(
        select(
            func.coalesce(func.sum(engine_counters.c.tokens), 0),
            func.coalesce(func.sum(engine_counters.c.withheld_tokens), 0),
            func.coalesce(func.sum(engine_counters.c.blocks), 0),
        )
    ).one()
    attributed = connection.scalar(select(func.coalesce(func.sum(meter_windows.c.requests_uj), 0)))
    committed = int(emitted - withheld)
    yield from _compare("event tokens = engine tokens less withheld", committed, totals.tokens)
    if totals.blocks > blocks:
        yield Difference("event blocks <= engine blocks", "all", str(blocks), str(totals.blocks))
    metered = int(attributed or 0)
    yield from _compare("energy events = meter's share of requests", metered, totals.energy_uj)


def _projections(connection: Connection) -> Iterator[Difference]:
    """Every account's two sides against the transfers, and what must not be negative."""
    sides: dict[str, list[int]] = {}
    for side, column in enumerate((transfers.c.debit_account_id, transfers.c.credit_account_id)):
        for account_id, amount in connection.execute(
            select(column, func.sum(transfers.c.amount_nano)).group_by(column)
        ):
            sides.setdefault(account_id, [0, 0])[side] = int(amount)
    for row in connection.execute(select(accounts).order_by(accounts.c.id)):
        debits, credits = sides.get(row.id, (0, 0))
        yield from _compare("account debits = transfers", debits, row.debits_nano, row.id)
        yield from _compare("account credits = transfers", credits, row.credits_nano, row.id)
        if row.kind in NEVER_NEGATIVE and credits < debits:
            yield Difference("account is not overdrawn", row.id, ">= 0", str(credits - debits))


def _open(connection: Connection) -> Iterator[Difference]:
    """What is reserved and pooled, against what is still open."""
    pending = (
        select(holds.c.tenant_id, func.sum(holds.c.amount_nano))
        .where(holds.c.state == HoldState.PENDING)
        .group_by(holds.c.tenant_id)
    )
    waiting = (
        select(review_items.c.tenant_id, func.sum(review_items.c.fee_nano))
        .where(review_items.c.state.in_(OPEN_STATES))
        .group_by(review_items.c.tenant_id)
    )
    for check, still_open, kind in (
        ("held credit = pending holds", pending, AccountKind.HOLDS),
        ("review pool = fees of open reviews", waiting, AccountKind.REVIEW_POOL),
    ):
        balance = func.sum(accounts.c.credits_nano) - func.sum(accounts.c.debits_nano)
        booked = (
            select(accounts.c.tenant_id, balance)
            .where(accounts.c.kind == kind)
            .group_by(accounts.c.tenant_id)
        )
        expected, actual = (
            {owner: int(amount) for owner, amount in connection.execute(query)}
            for query in (still_open, booked)
        )
        for owner in sorted(expected.keys() | actual.keys()):
            yield from _compare(check, expected.get(owner, 0), actual.get(owner, 0), owner)


def _compare(check: str, expected: int, actual: int, subject: str = "all") -> Iterator[Difference]:
    if expected != actual:
        yield Difference(check, subject, str(expected), str(actual))
