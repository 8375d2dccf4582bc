"""`/admin/reconciliation`: whether engine, events, lines, ledger, invoices and Stripe agree."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from sqlalchemy import Engine as Database

from api.auth import requires
from api.error_reports import documented
from api.errors import Forbidden, NotFound, Unauthenticated
from api.payments.cashier import Cashier
from api.roles import Scope
from api.schemas import TenantQuery
from billing import reconciliation
from billing.errors import InvalidPeriod, PaymentsDisabled, ProviderFailed, ProviderRefused
from billing.invoices.minor_units import format_minor, minor_nano
from billing.money import format_nano
from billing.period_totals import PeriodTotals
from metering.database import snapshot

PeriodQuery = Annotated[str | None, QueryParameter(description="A month, such as 2026-11")]
ProviderQuery = Annotated[
    bool, QueryParameter(description="Whether the payment provider is asked, too")
]


class DifferenceView(msgspec.Struct, frozen=True):
    """Two figures that should be one; `check` is stable, `subject` says where."""

    check: str
    subject: str
    expected: str
    actual: str


class PeriodView(msgspec.Struct, frozen=True):
    """One tenant's period in every book. `due` and `provider` are null where it was not asked."""

    tenant_id: str
    period: str
    currency: str
    requests: int
    event_tokens: int
    summary_tokens: int
    rated: str
    receipts: str
    ledger: str
    adjusted: str
    billed: str
    is_billed: bool
    due: str | None
    provider: str | None

    @classmethod
    def of(cls, found: PeriodTotals) -> PeriodView:
        """As it is sent."""
        minor = minor_nano(found.currency)

        def due(amount_minor: int | None) -> str | None:
            return None if amount_minor is None else format_minor(amount_minor, minor)

        return cls(
            found.tenant_id,
            found.period,
            found.currency,
            found.requests,
            found.event_tokens,
            found.summary_tokens,
            format_nano(found.rated_nano),
            format_nano(found.receipts_nano),
            format_nano(found.ledger_nano),
            format_nano(found.adjusted_nano),
            format_nano(found.billed_nano),
            found.is_billed,
            due(found.due_minor),
            due(found.provider_minor),
        )


class ReconciliationView(msgspec.Struct, frozen=True):
    """What was compared. No difference is the proof that all books tell the same story."""

    differences: list[DifferenceView]
    periods: list[PeriodView]
    compared: dict[str, int]
    provider: dict[str, int] | None


@get(
    "/reconciliation",
    guards=[requires(Scope.ADMINISTER)],
    summary="Compare all books",
    responses=documented(
        InvalidPeriod,
        PaymentsDisabled,
        ProviderFailed,
        ProviderRefused,
        Unauthenticated,
        Forbidden,
        NotFound,
    ),
    sync_to_thread=True,
)
def compare_books(
    database: NamedDependency[Database],
    cashier: NamedDependency[Cashier],
    tenant_id: TenantQuery = None,
    period: PeriodQuery = None,
    provider: ProviderQuery = False,
) -> ReconciliationView:
    """Name every difference, of everything or of one tenant's month. Changes nothing."""
    scope = reconciliation.Scope(tenant_id, period)
    if provider:
        asked = cashier.required_provider
        found = reconciliation.reconcile_with_provider(database, asked, scope)
    else:
        with snapshot(database) as connection:
            found = reconciliation.reconcile(connection, scope)
    return ReconciliationView(
        [msgspec.convert(each, DifferenceView, from_attributes=True) for each in found.differences],
        [PeriodView.of(each) for each in found.periods],
        msgspec.to_builtins(found.totals),
        None if found.provider is None else msgspec.to_builtins(found.provider),
    )


ROUTES = (compare_books,)
