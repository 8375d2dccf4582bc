"""What a tenant takes away for its own books: FOCUS data, usage and receipts as files."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from litestar import get
from litestar.exceptions import ValidationException
from litestar.params import QueryParameter
from litestar.response import Stream

from billing.errors import ExportUnavailable, InvalidPeriod
from billing.exports import downloads
from billing.exports.downloads import Download, FocusForm, RecordForm
from billing.exports.records import Chosen
from dashboards.billing.days import FirstDay, LastDay, read_days
from dashboards.injected import ADesk, AHost

FocusFormQuery: TypeAlias = Annotated[FocusForm, QueryParameter(name="format")]
RecordFormQuery: TypeAlias = Annotated[RecordForm, QueryParameter(name="format")]
PeriodQuery: TypeAlias = Annotated[str, QueryParameter()]


@get("/exports/focus", sync_to_thread=True)
def download_focus(
    host: AHost, desk: ADesk, period: PeriodQuery, kind: FocusFormQuery = FocusForm.CSV
) -> Stream:
    """A month's charges in FOCUS 1.2."""
    try:
        made = downloads.focus_file(
            host.database, [desk.tenant_id], period, kind, host.project_names
        )
    except (InvalidPeriod, ExportUnavailable) as error:
        raise ValidationException(str(error)) from None
    return _stream(made)


@get("/exports/usage", sync_to_thread=True)
def download_usage(
    host: AHost,
    desk: ADesk,
    kind: RecordFormQuery = RecordForm.CSV,
    first: FirstDay = None,
    last: LastDay = None,
) -> Stream:
    """What each request of a range of days used and cost."""
    return _stream(
        downloads.usage_file(host.database, _chosen(desk, first, last), kind, host.project_names)
    )


@get("/exports/receipts", sync_to_thread=True)
def download_receipts(
    host: AHost,
    desk: ADesk,
    kind: RecordFormQuery = RecordForm.JSON_LINES,
    first: FirstDay = None,
    last: LastDay = None,
) -> Stream:
    """The receipts of a range of days: signed, or line by line."""
    return _stream(downloads.receipts_file(host.database, _chosen(desk, first, last), kind))


def _chosen(desk: ADesk, first: str | None, last: str | None) -> Chosen:
    days = read_days(desk, first, last)
    return Chosen(desk.tenant_id, days.start_us, days.end_us)


def _stream(made: Download) -> Stream:
    return Stream(made.pieces, media_type=made.media_type, headers=made.headers)


HANDLERS = (download_focus, download_usage, download_receipts)
