"""Receipts checked offline: every lie is named."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from billing_cases import summary, unit
from signed_receipts import ISSUED_US, TERMS, Envelope, receipt_of, sign

from billing.errors import InvalidReceipt, ReceiptFault
from billing.rating import rate
from billing.signing import Signer
from billing.verification import compare_answer, verify, verify_adjustment
from metering import content_hash


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer.open(tmp_path_factory.mktemp("keys") / "receipt.pem")


@pytest.fixture
def envelope(signer: Signer) -> Envelope:
    return sign(signer, receipt_of(summary(unit(8, kind="header"), unit(2, "fragment", "review"))))


def test_a_receipt_proves_itself_with_nothing_but_the_public_keys(
    signer: Signer, envelope: Envelope
) -> None:
    verified = verify(json.loads(json.dumps(envelope)), signer.key_set())
    assert verified.request_id == "req_1"
    assert verified.kid == signer.kid
    assert verified.issued_at_us == ISSUED_US
    assert (
        verified.total_nano
        == rate(
            summary(unit(8, kind="header"), unit(2, "fragment", "review")), TERMS, review_fee=False
        ).total_nano
    )


def rehash(envelope: Envelope) -> None:
    import rfc8785

    envelope["sha256"] = hashlib.sha256(rfc8785.dumps(envelope["receipt"])).hexdigest()


def set_total(envelope: Envelope) -> None:
    envelope["receipt"]["total"] = "0"


def set_total_and_hash(envelope: Envelope) -> None:
    set_total(envelope)
    rehash(envelope)


def set_joules(envelope: Envelope) -> None:
    envelope["receipt"]["energy"]["joules"] = "0.1"
    rehash(envelope)


@pytest.mark.parametrize(
    ("forge", "fault"),
    [
        (set_total, ReceiptFault.WRONG_HASH),
        (set_total_and_hash, ReceiptFault.BAD_SIGNATURE),
        (set_joules, ReceiptFault.BAD_SIGNATURE),
        (lambda e: e.update(sha256="00" * 32), ReceiptFault.WRONG_HASH),
        (lambda e: e.update(sha256=None), ReceiptFault.MALFORMED),
        (lambda e: e["signature"].update(value="AAAA"), ReceiptFault.BAD_SIGNATURE),
        (lambda e: e["signature"].update(value=7), ReceiptFault.MALFORMED),
        (lambda e: e["signature"].update(kid="ed25519-0000"), ReceiptFault.UNKNOWN_KEY),
        (lambda e: e["signature"].update(kid=None), ReceiptFault.MALFORMED),
        (lambda e: e["signature"].update(alg="none"), ReceiptFault.UNSUPPORTED_ALGORITHM),
        (lambda e: e["signature"].pop("alg"), ReceiptFault.MALFORMED),
        (lambda e: e.pop("signature"), ReceiptFault.MALFORMED),
        (lambda e: e.pop("receipt"), ReceiptFault.MALFORMED),
        (lambda e: e.update(receipt=[]), ReceiptFault.MALFORMED),
        (lambda e: e["receipt"].pop("issued_at"), ReceiptFault.MALFORMED),
        (lambda e: e["receipt"].update(issued_at="yesterday"), ReceiptFault.MALFORMED),
        (lambda e: e["receipt"].update(issued_at="2026-01-01T00:00:00"), ReceiptFault.MALFORMED),
        (lambda e: e["receipt"].update(extra=float("nan")), ReceiptFault.MALFORMED),
        (lambda e: e["receipt"].update(extra=2**60), ReceiptFault.MALFORMED),
    ],
)
def test_every_forgery_is_refused_by_its_name(
    signer: Signer, envelope: Envelope, forge: Callable[[Envelope], object], fault: ReceiptFault
) -> None:
    forged = copy.deepcopy(envelope)
    forge(forged)
    with pytest.raises(InvalidReceipt) as refusal:
        verify(forged, signer.key_set())
    assert refusal.value.reason is fault


BAD_KEYS = [
    {"keys": [{"kid": "a", "x": 5}]},
    {"keys": [{"kid": 1, "x": "AA"}, {"kid": "a", "x": "AA"}]},
    {"keys": [{"kid": "a", "x": "AA", "retired_at_us": "now"}]},
]


@pytest.mark.parametrize("nonsense", [None, [], "receipt", 7, {}])
def test_what_is_no_envelope_is_malformed(signer: Signer, nonsense: Any) -> None:
    with pytest.raises(InvalidReceipt) as refusal:
        verify(nonsense, signer.key_set())
    assert refusal.value.reason is ReceiptFault.MALFORMED


@pytest.mark.parametrize(
    "keys", [None, [], {}, {"keys": 3}, {"keys": [3]}, {"keys": [{}]}, *BAD_KEYS]
)
def test_what_is_no_key_set_is_malformed(envelope: Envelope, keys: Any) -> None:
    with pytest.raises(InvalidReceipt) as refusal:
        verify(envelope, keys)
    assert refusal.value.reason is ReceiptFault.MALFORMED


def test_another_issuers_key_of_the_same_name_proves_nothing(
    envelope: Envelope, tmp_path: Path
) -> None:
    stranger = Signer.open(tmp_path / "other.pem").key_set()
    stranger["keys"][0]["kid"] = envelope["signature"]["kid"]
    with pytest.raises(InvalidReceipt) as refusal:
        verify(envelope, stranger)
    assert refusal.value.reason is ReceiptFault.BAD_SIGNATURE


def test_a_retired_key_still_vouches_for_what_it_signed_before(
    signer: Signer, envelope: Envelope
) -> None:
    keys = signer.key_set()
    keys["keys"][0]["retired_at_us"] = ISSUED_US
    verify(envelope, keys)
    keys["keys"][0]["retired_at_us"] = ISSUED_US - 1
    with pytest.raises(InvalidReceipt) as refusal:
        verify(envelope, keys)
    assert refusal.value.reason is ReceiptFault.RETIRED_KEY


def test_a_signed_receipt_whose_lines_do_not_add_up_is_refused(signer: Signer) -> None:
    document = receipt_of(summary())
    document["total"] = "1"
    with pytest.raises(InvalidReceipt) as refusal:
        verify(sign(signer, document), signer.key_set())
    assert refusal.value.reason is ReceiptFault.LINES_DO_NOT_SUM


@pytest.mark.parametrize(
    ("name", "value"), [("schema", "dflash.receipt/9"), ("total", "free"), ("lines", None)]
)
def test_a_signed_document_that_is_no_receipt_is_malformed(
    signer: Signer, name: str, value: Any
) -> None:
    document = receipt_of(summary()) | {name: value}
    with pytest.raises(InvalidReceipt) as refusal:
        verify(sign(signer, document), signer.key_set())
    assert refusal.value.reason is ReceiptFault.MALFORMED


def test_a_receipt_never_passes_for_an_adjustment(signer: Signer) -> None:
    signed = sign(signer, receipt_of(summary()), "adjustment")
    with pytest.raises(InvalidReceipt) as refusal:
        verify_adjustment(signed, signer.key_set())
    assert refusal.value.reason is ReceiptFault.MALFORMED


TEXT = "für dich"


@pytest.fixture
def answer(signer: Signer) -> dict[str, Any]:
    document = receipt_of(summary())
    document["output"]["sha256"] = hashlib.sha256(TEXT.encode()).hexdigest()
    counts = ("input_tokens", "output_tokens", "cached_input_tokens", "forced_tokens")
    measured = {
        "complete_units": document["units"]["complete"],
        "fragment_units": document["units"]["fragment"],
        "information_bits": document["information_bits"],
        "joules": document["energy"]["joules"],
        "energy_class": document["energy"]["class"],
    }
    return {
        "id": "req_1",
        "output": TEXT,
        "cost": document["total"],
        "currency": "USD",
        "usage": {name: document["output"][name] for name in counts} | measured,
        "confidence": dict(document["confidence"]),
        "status": document["status"],
        "finish_reason": document["finish_reason"],
        "model": document["model"]["name"],
        "seed": document["parameters"]["seed"],
        "created_at": document["started_at"],
        "ended_at": document["ended_at"],
        "review": {name: document["review"][name] for name in ("reason", "delivery")},
        "drafting": dict(document["drafting"]),
        "receipt": sign(signer, document),
    }


def test_an_answer_that_says_what_its_receipt_says_holds(answer: dict[str, Any]) -> None:
    assert compare_answer(answer) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output": TEXT + "!"}, "the output's hash is "),
        ({"output": ""}, "the output's hash is "),
        ({"id": "req_2"}, "id is 'req_2' in the answer, the receipt says 'req_1'"),
        ({"cost": "0"}, "cost is '0' in the answer"),
        ({"cost": None}, "cost is None in the answer"),
        ({"currency": "EUR"}, "currency is 'EUR' in the answer, the receipt says 'USD'"),
        ({"usage": {"input_tokens": 1}}, "usage.input_tokens is 1 in the answer"),
        ({"usage": {"output_tokens": 9.5}}, "usage.output_tokens is 9.5 in the answer"),
        ({"usage": {"joules": "0"}}, "usage.joules is '0' in the answer"),
        ({"usage": {"complete_units": 99}}, "usage.complete_units is 99 in the answer"),
        ({"confidence": {"geo_mean": "0.9999"}}, "confidence is {'geo_mean': '0.9999'} in the"),
        ({"confidence": None}, "confidence is None in the answer"),
    ],
)
def test_an_answer_that_says_otherwise_is_refused_by_name(
    answer: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidReceipt) as refusal:
        compare_answer(answer | change)
    assert refusal.value.reason is ReceiptFault.ANSWER_DIFFERS
    assert message in str(refusal.value)


@pytest.mark.parametrize("output", [5, ["a"], "\ud800"])
def test_an_output_that_is_no_text_is_malformed(answer: dict[str, Any], output: Any) -> None:
    with pytest.raises(InvalidReceipt) as refusal:
        compare_answer(answer | {"output": output})
    assert refusal.value.reason is ReceiptFault.MALFORMED


def test_what_an_answer_leaves_out_is_named_as_unchecked(answer: dict[str, Any]) -> None:
    assert compare_answer(answer | {"output": None}) == ("output",)
    bare = compare_answer({"receipt": answer["receipt"], "output": TEXT})
    assert bare[:5] == ("id", "cost", "currency", "usage.input_tokens", "usage.output_tokens")
    assert {"usage.joules", "confidence"} <= set(bare)


def test_what_a_receipt_of_an_older_release_does_not_say_is_not_held_against_an_answer(
    signer: Signer, answer: dict[str, Any]
) -> None:
    document = answer["receipt"]["receipt"]
    del document["output"]["forced_tokens"], document["confidence"]["calibration"]
    assert compare_answer(answer | {"receipt": sign(signer, document)}) == ()


def test_a_receipt_nested_too_deeply_is_malformed(signer: Signer, envelope: Envelope) -> None:
    for _ in range(3000):
        envelope["receipt"] = {"receipt": envelope["receipt"]}
    with pytest.raises(InvalidReceipt, match="nested too deeply"):
        verify(envelope, signer.key_set())


SALT = "5a" * 32


@pytest.fixture
def salted(signer: Signer, answer: dict[str, Any]) -> dict[str, Any]:
    document = receipt_of(summary(), salt=SALT)
    document["output"]["sha256"] = content_hash.of_text(SALT, TEXT)
    return answer | {"receipt": sign(signer, document) | {"content_salt": SALT}}


def test_a_salted_receipt_proves_the_answer_with_its_salt_and_confirms_no_guess_without(
    signer: Signer, salted: dict[str, Any]
) -> None:
    envelope = salted["receipt"]
    assert envelope["receipt"]["schema"] == "dflash.receipt/2"
    verify(envelope, signer.key_set())
    assert compare_answer(salted) == ()
    written = json.dumps(envelope["receipt"])
    assert hashlib.sha256(TEXT.encode()).hexdigest() not in written
    assert hashlib.sha256(b'["END"]').hexdigest() not in written
    del envelope["content_salt"]
    verify(envelope, signer.key_set())
    assert compare_answer(salted) == ("output",)


@pytest.mark.parametrize(
    ("salt", "fault"),
    [
        ("00" * 32, ReceiptFault.ANSWER_DIFFERS),
        ("5a", ReceiptFault.MALFORMED),
        ("no hex", ReceiptFault.MALFORMED),
        (7, ReceiptFault.MALFORMED),
    ],
)
def test_a_salt_that_is_another_or_none_proves_nothing(
    salted: dict[str, Any], salt: object, fault: ReceiptFault
) -> None:
    salted["receipt"]["content_salt"] = salt
    with pytest.raises(InvalidReceipt) as refusal:
        compare_answer(salted)
    assert refusal.value.reason is fault
