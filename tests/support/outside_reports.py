"""Usage that another engine reports, sent as its events are."""

from __future__ import annotations

import json
from typing import Any

from billing_cases import STARTED_US
from sqlalchemy import Engine

from billing.receipt_documents import iso
from metering.ingestion import envelopes, intake

REPORTED_US = STARTED_US + 10 * 3600 * 10**6


def report(
    database: Engine,
    number: int,
    at_us: int = STARTED_US,
    *,
    tenant_id: str = "ten_1",
    now_us: int = REPORTED_US,
    **data: Any,
) -> None:
    """Take in one event of 20 tokens in and 10 out, unless its `data` says otherwise."""
    body = {"model": "other", "input_tokens": 20, "output_tokens": 10, "energy_joules": "2.5"}
    raw = json.dumps(
        {
            "specversion": "1.0",
            "id": f"event-{number}",
            "source": "vllm",
            "type": "dev.dflash.usage.reported.v1",
            "subject": tenant_id,
            "time": iso(at_us),
            "data": body | data,
        }
    ).encode()
    named = {(tenant_id, str(data.get("project_id")))}
    read = envelopes.read(
        raw, source="vllm", tenant_ids=frozenset({tenant_id}), now_us=now_us, projects=named
    )
    (answer,) = intake.take(database, "mkey_1", [read])
    assert answer.result in {intake.Result.ACCEPTED, intake.Result.DUPLICATE}, answer
