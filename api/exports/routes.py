"""`/exports`: charges as FOCUS data, usage and receipts as records, as files that are streamed."""

from __future__ import annotations

from typing import Annotated

from litestar import Router, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.response import Stream
from sqlalchemy import Engine as Database

from api import projects
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.invoices.schemas import PeriodQuery
from api.schemas import TenantQuery
from api.usage import ranges
from api.usage.ranges import EndQuery, StartQuery
from billing.errors import ExportUnavailable, InvalidPeriod
from billing.exports import downloads
from billing.exports.downloads import Download, FocusForm, RecordForm
from billing.exports.records import Chosen
from metering.database import snapshot

REFUSALS = (InvalidParameter, Unauthenticated, Forbidden, NotFound)
FocusFormQuery = Annotated[FocusForm, QueryParameter(description="Of the file")]
RecordFormQuery = Annotated[RecordForm, QueryParameter(description="Of the file")]


@get(
    "/focus",
    guards=[requires(Scope.READ_BILLING)],
    summary="Export a month as FOCUS data",
    responses=documented(InvalidPeriod, ExportUnavailable, *REFUSALS),
    sync_to_thread=True,
)
def export_focus(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    period: PeriodQuery,
    format: FocusFormQuery = FocusForm.CSV,
    tenant_id: TenantQuery = None,
) -> Stream:
    """Every charge of a billing period in FOCUS 1.2; those of an invoice add up to it."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
    return _stream(downloads.focus_file(database, [asked], period, format, projects.names))


@get(
    "/usage",
    guards=[requires(Scope.READ_BILLING)],
    summary="Export usage",
    responses=documented(*REFUSALS),
    sync_to_thread=True,
)
def export_usage(
    *,
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    format: RecordFormQuery = RecordForm.JSON_LINES,
    tenant_id: TenantQuery = None,
    start: StartQuery = None,
    end: EndQuery = None,
) -> Stream:
    """Each request that ended in the range: units, scores, joules, cost, and who is to bear it.

    Without bounds, all; oldest first.
    """
    chosen = _chosen(database, principal, tenant_id, ranges.read_open(start, end))
    return _stream(downloads.usage_file(database, chosen, format, projects.names))


@get(
    "/receipts",
    guards=[requires(Scope.READ_BILLING)],
    summary="Export receipts",
    responses=documented(*REFUSALS),
    sync_to_thread=True,
)
def export_receipts(
    *,
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    format: RecordFormQuery = RecordForm.JSON_LINES,
    tenant_id: TenantQuery = None,
    start: StartQuery = None,
    end: EndQuery = None,
) -> Stream:
    """Receipts of requests that ended in the range: signed, each with its adjustments, as JSON
    Lines; their lines and adjustments, one a row, as CSV. Without bounds, all; oldest first.
    """
    chosen = _chosen(database, principal, tenant_id, ranges.read_open(start, end))
    return _stream(downloads.receipts_file(database, chosen, format))


def _chosen(
    database: Database, principal: Principal, tenant_id: str | None, asked: ranges.Range
) -> Chosen:
    with snapshot(database) as connection:
        tenant = tenant_in_scope(connection, principal, tenant_id)
    return Chosen(tenant, asked.start_us, asked.end_us)


def _stream(made: Download) -> Stream:
    return Stream(made.pieces, media_type=made.media_type, headers=made.headers)


exports_router = Router(
    "/exports",
    route_handlers=[export_focus, export_usage, export_receipts],
    tags=["usage and cost"],
)
