"""Whether all books tell the same story, compared while the page is made."""

from __future__ import annotations

from dataclasses import asdict

from litestar import Response, get

from billing.reconciliation import reconcile
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
def show_reconciliation(request: PageRequest, host: AHost, operator: AViewer) -> Response[str]:
    """Every difference between engine, events, lines, ledger and receipts. Changes nothing."""
    at_us = clock.now_us()
    with snapshot(host.database) as connection:
        result = reconcile(connection)
    totals = asdict(result.totals)
    return page(
        request,
        "operator/reconciliation.html",
        differences=result.differences[:SHOWN_MAX],
        found=len(result.differences),
        checked=[(name, totals[name]) for name in COUNTED],
        at_us=at_us,
    )


HANDLERS = (show_reconciliation,)
