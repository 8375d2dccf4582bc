"""Usage of other engines that was accepted and could not be rated, and why."""

from __future__ import annotations

from litestar import Response, get

from billing import outside
from dashboards.injected import AHost, AViewer
from dashboards.rendering import page
from dashboards.sessions import PageRequest
from metering import clock
from metering.database import snapshot

SHOWN_MAX = 200


@get("/unrated", sync_to_thread=True)
def show_unrated(request: PageRequest, host: AHost, operator: AViewer) -> Response[str]:
    """What waits for a price, oldest first. Each is charged by itself once it has one."""
    now_us = clock.now_us()
    with snapshot(host.database) as connection:
        waiting = outside.waiting(connection)
        events = outside.unrated(connection, SHOWN_MAX)
    oldest_us = waiting.oldest_ingested_at_us
    return page(
        request,
        "operator/unrated.html",
        waiting=waiting,
        oldest_age_us=None if oldest_us is None else now_us - oldest_us,
        events=events,
    )


HANDLERS = (show_unrated,)
