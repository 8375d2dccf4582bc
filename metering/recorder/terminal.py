"""The one transaction that ends a request: terminal event, summary, final row, settlement."""

from __future__ import annotations

from sqlalchemy import Connection

from metering import bodies, event_log, requests
from metering.events import RequestSummary
from metering.protocols import Settler
from metering.recorder.endings import Ending
from metering.recorder.live import LiveRequest


def settle(
    connection: Connection, live: LiveRequest, ending: Ending, ended_at_us: int, settler: Settler
) -> RequestSummary:
    """End a request within the caller's transaction, and price it; returns what was settled.

    Nothing of the request's own state changes, so that an attempt that fails can be repeated.
    Raises UnknownRequest when the request is final already.
    """
    meter = live.meter
    end = meter.terminal(
        ending.status,
        ending.reason,
        ending.ended_by,
        replaced_tail=live.replaced_tail,
        detail=ending.detail,
    )
    summary = meter.summary(end, ended_at_us)
    event_log.append(connection, [bodies.state(end, live.admitted.tenant_id, ended_at_us)])
    requests.finalise(connection, summary, meter.output)
    settler.settle(connection, summary)
    return summary
