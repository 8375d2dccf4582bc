"""Checking a receipt with nothing but its envelope and the public keys. Offline and pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import rfc8785

from billing.errors import InvalidAmount, InvalidReceipt, ReceiptFault
from billing.money import parse_nano
from billing.receipt_documents import ADJUSTMENT_SCHEMA, RECEIPT_SCHEMAS, SALTED_SCHEMA, epoch_us
from billing.signing import ALGORITHM, is_signed
from metering import content_hash

_ABSENT = object()
# Where an answer repeats what its receipt says.
_REPEATED = (
    (("id",), ("request_id",)),
    (("cost",), ("total",)),
    (("currency",), ("currency",)),
    (("usage", "input_tokens"), ("output", "input_tokens")),
    (("usage", "output_tokens"), ("output", "output_tokens")),
)
# The same, but receipts of older releases, or of requests of this kind, do not say all of it.
_MEASURED = (
    (("status",), ("status",)),
    (("finish_reason",), ("finish_reason",)),
    (("model",), ("model", "name")),
    (("seed",), ("parameters", "seed")),
    (("created_at",), ("started_at",)),
    (("ended_at",), ("ended_at",)),
    (("review", "reason"), ("review", "reason")),
    (("review", "delivery"), ("review", "delivery")),
    (("drafting", "steps"), ("drafting", "steps")),
    (("drafting", "drafted_nodes"), ("drafting", "drafted_nodes")),
    (("drafting", "verified_nodes"), ("drafting", "verified_nodes")),
    (("drafting", "accepted_tokens"), ("drafting", "accepted_tokens")),
    (("drafting", "draft_hit_rate"), ("drafting", "draft_hit_rate")),
    (("drafting", "mean_accepted_length"), ("drafting", "mean_accepted_length")),
    (("usage", "cached_input_tokens"), ("output", "cached_input_tokens")),
    (("usage", "forced_tokens"), ("output", "forced_tokens")),
    (("usage", "complete_units"), ("units", "complete")),
    (("usage", "fragment_units"), ("units", "fragment")),
    (("usage", "information_bits"), ("information_bits",)),
    (("usage", "joules"), ("energy", "joules")),
    (("usage", "energy_class"), ("energy", "class")),
    (("confidence",), ("confidence",)),
)


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
        if document["schema"] not in RECEIPT_SCHEMAS:
            known = " or ".join(RECEIPT_SCHEMAS)
            raise _fault(ReceiptFault.MALFORMED, f"not a {known}: {document['schema']!r}")
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


def compare_answer(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Compare an answer of `/generate` with the receipt inside it, which `verify` checks before.

    Returns the names of what the answer leaves out, so that it stays unchecked: among them
    "output" where the text is null because it was erased, or the salt of its hash is not there.
    Raises InvalidReceipt when the answer says anything else than its receipt.
    """
    receipt = answer["receipt"]["receipt"]
    unchecked = []
    text, salt = answer.get("output"), answer["receipt"].get("content_salt")
    is_salted = receipt.get("schema") == SALTED_SCHEMA
    if text is None or (is_salted and salt is None):
        unchecked.append("output")
    else:
        _compare_text(text, salt if is_salted else None, _at(receipt, ("output", "sha256")))
    for shown_at, signed_at in (*_REPEATED, *_MEASURED):
        name = ".".join(shown_at)
        shown, signed = _at(answer, shown_at), _at(receipt, signed_at)
        if signed is _ABSENT and (shown_at, signed_at) in _MEASURED:
            continue
        if isinstance(signed, Mapping) and isinstance(shown, Mapping):
            shown = {field: shown[field] for field in shown if field in signed}
        if shown is _ABSENT:
            unchecked.append(name)
        elif type(shown) is not type(signed) or not _is_said(shown, signed, shown_at[-1]):
            raise _fault(
                ReceiptFault.ANSWER_DIFFERS,
                f"{name} is {shown!r} in the answer, the receipt says {_written(signed)}",
            )
    return tuple(unchecked)


def _is_said(shown: Any, signed: Any, name: str) -> bool:
    """Whether an answer says a receipt's value; of a moment, however its digits are written."""
    if name not in {"created_at", "ended_at"}:
        return bool(shown == signed)
    try:
        return epoch_us(shown) == epoch_us(signed)
    except (TypeError, ValueError):
        return False


def _compare_text(text: Any, salt: Any, signed: Any) -> None:
    try:
        actual = content_hash.of_text(salt, text)
    except (AttributeError, TypeError, ValueError):
        message = "the answer's output is not text, or its salt is none"
        raise _fault(ReceiptFault.MALFORMED, message) from None
    if actual != signed:
        raise _fault(
            ReceiptFault.ANSWER_DIFFERS,
            f"the output's hash is {actual}, the receipt says {_written(signed)}",
        )


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(document, Mapping) or name not in document:
            return _ABSENT
        document = document[name]
    return document


def _written(value: Any) -> str:
    return "nothing of it" if value is _ABSENT else repr(value)


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
    except RecursionError:
        raise _fault(ReceiptFault.MALFORMED, f"not a signed {name}: nested too deeply") from None
    except (KeyError, TypeError, ValueError, rfc8785.CanonicalizationError) as error:
        raise _fault(ReceiptFault.MALFORMED, f"not a signed {name}: {error!r}") from None
    known = _known(public_keys)
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


def _known(public_keys: Mapping[str, Any]) -> dict[str, tuple[str, int | None]]:
    """The public key, and when it was retired, by key id."""
    known = {}
    try:
        for key in public_keys["keys"]:
            kid, public_key, retired_at_us = key["kid"], key["x"], key.get("retired_at_us")
            if not isinstance(kid, str) or not isinstance(public_key, str):
                raise TypeError(f"kid and x must be text, not {kid!r} and {public_key!r}")
            if retired_at_us is not None and not isinstance(retired_at_us, int):
                raise TypeError(f"retired_at_us must be an integer, not {retired_at_us!r}")
            known[kid] = (public_key, retired_at_us)
    except (KeyError, TypeError, AttributeError) as error:
        raise _fault(ReceiptFault.MALFORMED, f"not a JSON Web Key Set: {error!r}") from None
    return known


def _fault(reason: ReceiptFault, message: str) -> InvalidReceipt:
    return InvalidReceipt(reason, message)
