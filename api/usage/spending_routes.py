"""`GET /spending`: what a tenant spent, by key, project, end user, model or tag."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from sqlalchemy import Engine as Database

from api.auth import Principal, Scope, requires, tenant_in_scope
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.inference.orders import LABEL_CHARS_MAX
from api.schemas import TenantQuery, to_time
from api.usage import ranges
from api.usage.ranges import EndQuery, StartQuery
from billing.money import format_nano
from billing.spending import Division, Spending, spending
from metering.database import snapshot
from metering.queries import Bucket

ByQuery = Annotated[Division, QueryParameter(description="What the spending is divided by")]
TagQuery = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=LABEL_CHARS_MAX,
        description="With `by=tag`: which of the requests' tags",
    ),
]


class SpendingRow(msgspec.Struct, frozen=True):
    """What the requests of one name came to. A null name is those that carry none."""

    name: str | None
    requests: int
    input_tokens: int
    output_tokens: int
    charged: str
    adjusted: str
    currency: str

    @classmethod
    def of(cls, found: Spending) -> SpendingRow:
        """The wire's view of a name's spending."""
        return cls(
            name=found.name,
            requests=found.requests,
            input_tokens=found.input_tokens,
            output_tokens=found.output_tokens,
            charged=format_nano(found.charged_nano),
            adjusted=format_nano(found.adjusted_nano),
            currency=found.currency,
        )


class SpendingView(msgspec.Struct, frozen=True):
    """Spending of requests that ended in [start, end), dearest first."""

    tenant_id: str
    start: dt.datetime
    end: dt.datetime
    by: Division
    items: list[SpendingRow]


@get(
    "/spending",
    guards=[requires(Scope.READ_BILLING)],
    summary="Divide spending",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def read_spending(
    *,
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    by: ByQuery,
    tag: TagQuery = None,
    tenant_id: TenantQuery = None,
    start: StartQuery = None,
    end: EndQuery = None,
) -> SpendingView:
    """What was spent on each key, project, end user, model or value of a tag."""
    if (by is Division.TAG) != (tag is not None):
        raise InvalidParameter("`tag` belongs to `by=tag`, and only to it", "tag")
    asked = ranges.read(start, end, Bucket.DAY)
    with snapshot(database) as connection:
        seen = tenant_in_scope(connection, principal, tenant_id)
        found = spending(connection, seen, asked.start_us, asked.end_us, by, tag=tag)
    return SpendingView(
        tenant_id=seen,
        start=to_time(asked.start_us),
        end=to_time(asked.end_us),
        by=by,
        items=[SpendingRow.of(each) for each in found],
    )
