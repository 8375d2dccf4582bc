"""Checking a receipt with nothing but its envelope and the public keys. Offline and pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785

from billing.errors import InvalidAmount, InvalidReceipt, ReceiptFault
from billing.money import parse_nano
from billing.receipt_documents import ADJUSTMENT_SCHEMA, RECEIPT_SCHEMA, epoch_us
from billing.signing import ALGORITHM, is_signed


@dataclass(frozen=True, slots=True)
class VerifiedReceipt:
    """A receipt whose signature, hash and sum hold."""

    request_id: str
    tenant_id: str
    total_nano: int
    currency: str
    test_mode: bool
    kid: str
    sha256: str
    issued_at_us: int


@dataclass(frozen=True, slots=True)
class VerifiedAdjustment:
    """An adjustment whose signature and hash hold."""

    adjustment_id: str
    request_id: str
    receipt_sha256: str
    reason: str
    amount_nano: int
    currency: str
    kid: str
    sha256: str


def verify(envelope: Mapping[str, Any], public_keys: Mapping[str, Any]) -> VerifiedReceipt:
    """Check a signed receipt against a JSON Web Key Set; raises InvalidReceipt with its fault."""
    document, kid, sha256, issued_at_us = _signed(envelope, "receipt", public_keys)
    try:
        if document["schema"] != RECEIPT_SCHEMA:
            raise _fault(ReceiptFault.MALFORMED, f"not a {RECEIPT_SCHEMA}: {document['schema']!r}")
        total = parse_nano(document["total"])
        lines = [parse_nano(line["amount"]) for line in document["lines"]]
        verified = VerifiedReceipt(
            request_id=document["request_id"],
            tenant_id=document["tenant_id"],
            total_nano=total,
            currency=document["currency"],
            test_mode=document["test_mode"],
            kid=kid,
            sha256=sha256,
            issued_at_us=issued_at_us,
        )
    except (KeyError, TypeError, InvalidAmount) as error:
        raise _fault(ReceiptFault.MALFORMED, f"not a whole receipt: {error!r}") from None
    if sum(lines) != total:
        raise _fault(
            ReceiptFault.LINES_DO_NOT_SUM,
            f"the lines add up to {sum(lines)} nano, the total is {total}",
        )
    return verified


def verify_adjustment(
    envelope: Mapping[str, Any], public_keys: Mapping[str, Any]
) -> VerifiedAdjustment:
    """Check a signed adjustment; raises InvalidReceipt. The caller compares the cited hash."""
    document, kid, sha256, _ = _signed(envelope, "adjustment", public_keys)
    try:
        if document["schema"] != ADJUSTMENT_SCHEMA:
            raise _fault(
                ReceiptFault.MALFORMED, f"not a {ADJUSTMENT_SCHEMA}: {document['schema']!r}"
            )
        return VerifiedAdjustment(
            adjustment_id=document["id"],
            request_id=document["request_id"],
            receipt_sha256=document["receipt_sha256"],
            reason=document["reason"],
            amount_nano=parse_nano(document["amount"]),
            currency=document["currency"],
            kid=kid,
            sha256=sha256,
        )
    except (KeyError, TypeError, InvalidAmount) as error:
        raise _fault(ReceiptFault.MALFORMED, f"not a whole adjustment: {error!r}") from None


def _signed(
    envelope: Mapping[str, Any], name: str, public_keys: Mapping[str, Any]
) -> tuple[Mapping[str, Any], str, str, int]:
    """The document with its key id, hash and time of issue, once its signature holds."""
    try:
        document, sha256 = envelope[name], envelope["sha256"]
        signature = envelope["signature"]
        kid, algorithm, value = signature["kid"], signature["alg"], signature["value"]
        canonical = rfc8785.dumps(document)
        issued_at_us = epoch_us(document["issued_at"])
        if not all(isinstance(text, str) for text in (kid, value, sha256)):
            raise TypeError("kid, value and sha256 must be text")
    except (KeyError, TypeError, ValueError, rfc8785.CanonicalizationError) as error:
        raise _fault(ReceiptFault.MALFORMED, f"not a signed {name}: {error!r}") from None
    try:
        known = {key["kid"]: (key["x"], key.get("retired_at_us")) for key in public_keys["keys"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise _fault(ReceiptFault.MALFORMED, f"not a JSON Web Key Set: {error!r}") from None
    if algorithm != ALGORITHM:
        raise _fault(ReceiptFault.UNSUPPORTED_ALGORITHM, f"signed with {algorithm!r}")
    if kid not in known:
        raise _fault(ReceiptFault.UNKNOWN_KEY, f"no public key {kid!r}; known: {sorted(known)}")
    public_key, retired_at_us = known[kid]
    actual = hashlib.sha256(canonical).hexdigest()
    if actual != sha256:
        raise _fault(ReceiptFault.WRONG_HASH, f"the {name}'s hash is {actual}, not {sha256}")
    if not is_signed(public_key, value, canonical):
        raise _fault(ReceiptFault.BAD_SIGNATURE, f"key {kid!r} did not sign this {name}")
    if retired_at_us is not None and issued_at_us > retired_at_us:
        raise _fault(
            ReceiptFault.RETIRED_KEY, f"issued after key {kid!r} was retired at {retired_at_us}"
        )
    return document, kid, sha256, issued_at_us


def _fault(reason: ReceiptFault, message: str) -> InvalidReceipt:
    return InvalidReceipt(reason, message)
