"""Receipts: one per request, signed, never changed; what becomes known later is an adjustment.

Reading them never bills. An envelope is `{"receipt": ..., "signature": ..., "sha256": ...}`, and
`verify` needs nothing but it and the public keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select

from billing.catalogue import TariffVersion
from billing.errors import BillingError
from billing.invoices import closed_periods
from billing.rating import Line
from billing.receipt_documents import (
    ReviewTerms,
    adjustment_document,
    energy_document,
    receipt_document,
)
from billing.rows import insert_once
from billing.signing import ALGORITHM, Signer, public_keys
from billing.tables import adjustments as adjustments_table
from billing.tables import rated_lines, receipts
from billing.verification import VerifiedReceipt, verify, verify_adjustment
from engine.records import EngineInfo
from metering import clock
from metering.events import EnergySummary, RequestSummary
from metering.prepared import Prepared
from metering.tables import requests

__all__ = [
    "Signer",
    "VerifiedReceipt",
    "adjust",
    "adjustments",
    "issue",
    "public_keys",
    "receipt",
    "verify",
    "verify_adjustment",
]


_ISSUE = Prepared(insert(receipts))


def issue(
    connection: Connection,
    signer: Signer,
    summary: RequestSummary,
    tariff: TariffVersion,
    lines: Sequence[Line],
    *,
    engine: EngineInfo | None,
    review: ReviewTerms | None,
    parameters: Mapping[str, Any],
    salt: str | None,
    test_mode: bool,
) -> None:
    """Sign and store a request's receipt, within the caller's transaction. Once per request."""
    now = clock.now_us()
    sealed = signer.seal(
        receipt_document(
            summary,
            tariff,
            lines,
            engine=engine,
            review=review,
            parameters=parameters,
            salt=salt,
            test_mode=test_mode,
            issued_at_us=now,
        )
    )
    _ISSUE.run(
        connection,
        {
            "request_id": summary.request_id,
            "tenant_id": summary.tenant_id,
            "document": sealed.text,
            "sha256": sealed.sha256,
            "kid": sealed.kid,
            "signature": sealed.signature,
            "total_nano": sum(line.amount_nano for line in lines),
            "currency": tariff.currency,
            "created_at_us": now,
        },
    )


def adjust(
    connection: Connection,
    signer: Signer,
    *,
    adjustment_id: str,
    request_id: str,
    reason: str,
    amount_nano: int,
    review: Mapping[str, Any] | None = None,
    energy: EnergySummary | None = None,
    note: str | None = None,
) -> None:
    """Sign and store what became known of a request, citing its receipt. Once per id."""
    cited = connection.execute(
        select(receipts.c.sha256, receipts.c.tenant_id, receipts.c.currency).where(
            receipts.c.request_id == request_id
        )
    ).one_or_none()
    if cited is None:
        raise BillingError(f"{request_id} has no receipt to adjust")
    now = clock.now_us()
    sealed = signer.seal(
        adjustment_document(
            adjustment_id=adjustment_id,
            request_id=request_id,
            tenant_id=cited.tenant_id,
            receipt_sha256=cited.sha256,
            reason=reason,
            amount_nano=amount_nano,
            currency=cited.currency,
            review=None if review is None else dict(review),
            energy=None if energy is None else energy_document(energy),
            note=note,
            issued_at_us=now,
        )
    )
    if insert_once(
        connection,
        adjustments_table,
        {
            "id": adjustment_id,
            "request_id": request_id,
            "tenant_id": cited.tenant_id,
            "receipt_sha256": cited.sha256,
            "document": sealed.text,
            "sha256": sealed.sha256,
            "kid": sealed.kid,
            "signature": sealed.signature,
            "amount_nano": amount_nano,
            "created_at_us": now,
        },
    ):
        # Of the period of its request, which may be closed.
        ended_at_us = connection.scalar(
            select(rated_lines.c.event_time_us)
            .where(rated_lines.c.request_id == request_id)
            .limit(1)
        )
        closed_periods.note(
            connection, cited.tenant_id, now if ended_at_us is None else ended_at_us
        )


_RECEIPT = Prepared(
    select(
        receipts.c.tenant_id,
        receipts.c.document,
        receipts.c.kid,
        receipts.c.signature,
        receipts.c.sha256,
        requests.c.content_salt,
    )
    .join(requests, requests.c.id == receipts.c.request_id)
    .where(receipts.c.request_id == bindparam("request_id"))
)


def receipt(
    connection: Connection, tenant_id: str | None, request_id: str
) -> dict[str, Any] | None:
    """The request's signed receipt, or null: none yet, or another tenant's.

    A null tenant is an operator, who sees every tenant's. Beside it stands the `content_salt` of
    its hashes, until the content is erased.
    """
    row = _RECEIPT.row(connection, {"request_id": request_id})
    if row is None or tenant_id not in {None, row.tenant_id}:
        return None
    _, *sealed, salt = row
    envelope = _envelope("receipt", *sealed)
    return envelope if salt is None else envelope | {"content_salt": salt}


_ADJUSTMENTS = Prepared(
    select(
        adjustments_table.c.document,
        adjustments_table.c.kid,
        adjustments_table.c.signature,
        adjustments_table.c.sha256,
    )
    .where(adjustments_table.c.request_id == bindparam("request_id"))
    .order_by(adjustments_table.c.created_at_us, adjustments_table.c.id)
)


def adjustments(connection: Connection, request_id: str) -> list[dict[str, Any]]:
    """The request's signed adjustments, oldest first."""
    rows = _ADJUSTMENTS.rows(connection, {"request_id": request_id})
    return [_envelope("adjustment", *row) for row in rows]


def _envelope(name: str, document: str, kid: str, signature: str, sha256: str) -> dict[str, Any]:
    return {
        name: json.loads(document),
        "signature": {"kid": kid, "alg": ALGORITHM, "value": signature},
        "sha256": sha256,
    }
