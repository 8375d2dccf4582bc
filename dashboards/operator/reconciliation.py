"""Whether all books tell the same story, compared while the page is made."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from litestar import Response, get
from litestar.params import QueryParameter

from billing.errors import ProviderFailed, ProviderRefused
from billing.invoices.minor_units import format_minor, minor_nano
from billing.period_totals import PeriodTotals
from billing.reconciliation import Reconciliation, reconcile, reconcile_with_provider
from dashboards.injected import AHost, AViewer
from dashboards.rendering import page
from dashboards.sessions import PageRequest
from metering import clock
from metering.database import snapshot

# Joules are compared too, but their sum is of all classes and therefore not a figure to show.
SHOWN_MAX = 200
COUNTED = (
    "requests",
    "events",
    "blocks",
    "tokens",
    "lines",
    "transfers",
    "receipts",
    "adjustments",
)


@get("/reconciliation", sync_to_thread=True)
def show_reconciliation(
    request: PageRequest,
    host: AHost,
    operator: AViewer,
    provider: Annotated[bool, QueryParameter()] = False,
) -> Response[str]:
    """Every difference from the engine's counters to the invoices, and to Stripe where that is
    asked for. Changes nothing.
    """
    at_us = clock.now_us()
    result, unanswered = _compared(host, asks=provider)
    totals = asdict(result.totals)
    return page(
        request,
        "operator/reconciliation.html",
        differences=result.differences[:SHOWN_MAX],
        found=len(result.differences),
        checked=[(name, totals[name]) for name in COUNTED],
        asked=None if result.provider is None else asdict(result.provider).items(),
        unanswered=unanswered,
        has_provider=host.provider is not None,
        periods=[(each, *_provider_columns(each)) for each in result.periods[-SHOWN_MAX:][::-1]],
        left_out=max(0, len(result.periods) - SHOWN_MAX),
        at_us=at_us,
    )


def _compared(host: AHost, *, asks: bool) -> tuple[Reconciliation, str | None]:
    """What was found, and why the provider did not answer where it was asked and did not."""
    unanswered = None
    if asks and host.provider is not None:
        try:
            return reconcile_with_provider(host.database, host.provider), None
        except (ProviderFailed, ProviderRefused) as error:
            unanswered = str(error)
    with snapshot(host.database) as connection:
        return reconcile(connection), unanswered


def _provider_columns(totals: PeriodTotals) -> tuple[str, str]:
    """What is due by our invoices and by the provider's; a dash where it was told of none."""
    if totals.due_minor is None or totals.provider_minor is None:
        return "–", "–"
    minor = minor_nano(totals.currency)
    return format_minor(totals.due_minor, minor), format_minor(totals.provider_minor, minor)


HANDLERS = (show_reconciliation,)
