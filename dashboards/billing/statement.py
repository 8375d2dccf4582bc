"""A tenant's statement: every movement of its credit, newest first."""

from __future__ import annotations

from litestar import Response, get
from litestar.params import FromQuery

from billing import queries
from billing.ledger import balances
from dashboards import cursors
from dashboards.injected import ADesk, AHost
from dashboards.rendering import page, url
from dashboards.sessions import PageRequest
from metering.database import snapshot

PAGE_SIZE = 50


@get("/statement", sync_to_thread=True)
def show_statement(
    request: PageRequest,
    host: AHost,
    desk: ADesk,
    cursor: FromQuery[str | None] = None,
) -> Response[str]:
    """The ledger of the tenant's credit: grants, holds, releases, refunds."""
    after = cursors.decode(cursor, cursors.SequencePosition)
    with snapshot(host.database) as connection:
        balance = balances.balance(connection, desk.tenant_id)
        found = queries.statement(
            connection, desk.tenant_id, PAGE_SIZE + 1, after.seq if after else None
        )
    shown = found[:PAGE_SIZE]
    more = len(found) > PAGE_SIZE
    return page(
        request,
        "billing/statement.html",
        desk=desk,
        balance=balance,
        entries=shown,
        cursor=cursor,
        next_url=url(f"/statement?cursor={cursors.encode((shown[-1].seq,))}") if more else None,
    )


HANDLERS = (show_statement,)
