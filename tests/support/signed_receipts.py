"""Receipts made from summaries and signed, without a database."""

from __future__ import annotations

import json
from typing import Any

from billing_cases import ENGINE

from billing.catalogue import TariffVersion
from billing.rating import rate
from billing.receipt_documents import ReviewTerms, receipt_document
from billing.signing import ALGORITHM, Signer
from billing.tariffs import document_sha256, shipped
from metering.events import RequestSummary

TERMS = shipped()["composite"]
VERSION = TariffVersion(
    "composite@1", "composite", 1, "USD", TERMS, document_sha256(TERMS), 0, None
)
ISSUED_US = 1_790_000_002_000_000

Envelope = dict[str, Any]


def sign(signer: Signer, document: dict[str, Any], name: str = "receipt") -> Envelope:
    sealed = signer.seal(document)
    signature = {"kid": sealed.kid, "alg": ALGORITHM, "value": sealed.signature}
    return {name: json.loads(sealed.text), "signature": signature, "sha256": sealed.sha256}


def receipt_of(request: RequestSummary, salt: str | None = None) -> dict[str, Any]:
    return receipt_document(
        request,
        VERSION,
        rate(request, TERMS, review_fee=False).lines,
        engine=ENGINE,
        review=ReviewTerms("audit", 250_000_000, "operator"),
        parameters={"temperature": 0.7, "seed": 5, "draft": True, "top_k": None, "stop": ["END"]},
        salt=salt,
        test_mode=False,
        issued_at_us=ISSUED_US,
    )
