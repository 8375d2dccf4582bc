"""The outbox of what tenants are told: written with the change it speaks of, sent by the gateway.

A notice's id derives from its cause, so that a replay tells nothing twice. Whoever changes
something that a tenant may want to hear of announces it in the same transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import Connection

from billing.credit_tables import notices
from billing.rows import insert_once
from metering import clock


class NoticeType(StrEnum):
    """What a tenant can be told."""

    BALANCE_LOW = "balance.low"
    BUDGET_THRESHOLD = "budget.threshold_reached"
    GRANT_EXPIRED = "grant.expired"
    INVOICE_ISSUED = "invoice.issued"
    INVOICE_PAID = "invoice.paid"
    INVOICE_REOPENED = "invoice.reopened"
    INVOICE_VOIDED = "invoice.voided"
    INVOICE_CREDITED = "invoice.credited"
    INVOICE_PAYMENT_FAILED = "invoice.payment_failed"
    INVOICE_OVERDUE = "invoice.overdue"
    CREDIT_PAUSED = "credit.paused"
    CREDIT_RESUMED = "credit.resumed"
    TOP_UP_PAID = "top_up.paid"
    REVIEW_CAP_REACHED = "review.cap_reached"
    REVIEW_RESOLVED = "review.resolved"
    REVIEW_LAPSED = "review.lapsed"


def announce(
    connection: Connection, tenant_id: str, kind: str, cause: str, data: Mapping[str, Any]
) -> bool:
    """Write a notice within the caller's transaction; false if this cause was told before.

    `data` is plain JSON: amounts as decimal strings, never content of a request.
    """
    named = hashlib.sha256(f"{tenant_id}\n{kind}\n{cause}".encode()).hexdigest()
    return insert_once(
        connection,
        notices,
        {
            "id": f"msg_{named[:40]}",
            "tenant_id": tenant_id,
            "type": str(kind),
            "data": msgspec.json.encode(dict(data), order="sorted").decode(),
            "created_at_us": clock.now_us(),
        },
    )
