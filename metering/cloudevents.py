"""Usage events in their CloudEvents 1.0 envelope, for whoever takes them elsewhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from metering.bodies import UsageEvent

TYPE_PREFIX = "dev.dflash.usage"


def to_cloudevent(event: UsageEvent) -> dict[str, Any]:
    """The event as a CloudEvents JSON object; `data` is the body, `time` when it happened.

    Extension attributes are lower-case letters and digits, as the specification wants.
    """
    happened = datetime.fromtimestamp(event.event_time_us // 10**6, UTC)
    return {
        "specversion": "1.0",
        "id": event.id,
        "source": event.source,
        "type": f"{TYPE_PREFIX}.{event.kind.value}.v1",
        "subject": event.request_id,
        "time": f"{happened:%Y-%m-%dT%H:%M:%S}.{event.event_time_us % 10**6:06d}Z",
        "datacontenttype": "application/json",
        "tenantid": event.tenant_id,
        "bodysha256": event.body_sha256,
        "data": json.loads(event.body),
    }
