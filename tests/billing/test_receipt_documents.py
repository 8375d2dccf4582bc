"""What a receipt says, and what it never does."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from billing_cases import energy, nothing_emitted, summary, unit
from signed_receipts import ISSUED_US, TERMS, Envelope, receipt_of, sign

from billing.receipt_documents import epoch_us, iso
from billing.signing import Signer
from billing.tariffs import document_sha256


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer.open(tmp_path_factory.mktemp("keys") / "receipt.pem")


@pytest.fixture
def envelope(signer: Signer) -> Envelope:
    return sign(signer, receipt_of(summary(unit(8, kind="header"), unit(2, "fragment", "review"))))


def test_a_receipt_says_what_was_generated_how_surely_and_for_how_many_joules(
    envelope: Envelope,
) -> None:
    receipt = envelope["receipt"]
    parameters = receipt["parameters"]
    stop = parameters.pop("stop")
    assert parameters == {"temperature": "0.7", "seed": 5, "draft": True, "top_k": None}
    assert stop == {"sha256": hashlib.sha256(b'["END"]').hexdigest()}, "text is content"
    assert receipt["output"]["sha256"] == "cd" * 32
    assert receipt["units"] == {
        "segmenter": "units/1+ts-python@0.25.0",
        "complete": 1,
        "fragment": 1,
        "groups": [
            {"kind": "header", "state": "complete", "tier": "standard", "count": 1, "tokens": 8},
            {"kind": "sentence", "state": "fragment", "tier": "review", "count": 1, "tokens": 2},
        ],
    }
    assert receipt["confidence"]["geo_mean"] == "0.9600"
    assert receipt["information_bits"] == "7.5"
    assert receipt["energy"] == {
        "class": "estimated",
        "joules": "12.3",
        "source": "cpu_time",
        "scope": "process",
        "method": "affine-shapley/1",
        "weights": None,
        "devices": ["cpu"],
        "update_period_us": None,
        "uncertainty_pct": 30,
    }
    assert receipt["engine"] == {
        "backend": "fp32",
        "device": "cpu",
        "instruction_set": "AVX2",
        "thread_count": 2,
        "batch_invariant": True,
        "rope_scaling_factor": "1",
    }
    assert receipt["drafting"]["draft_hit_rate"] == "0.5000"
    assert receipt["tariff"]["sha256"] == document_sha256(TERMS)


def test_what_is_missing_is_null_and_never_zero(signer: Signer) -> None:
    silent = nothing_emitted(energy=energy("unavailable", None), information_ubits=None)
    receipt = sign(signer, receipt_of(silent))["receipt"]
    assert receipt["confidence"] is None
    assert receipt["information_bits"] is None
    assert receipt["energy"]["joules"] is None
    assert receipt["drafting"]["draft_hit_rate"] is None


def test_a_receipt_holds_no_float_and_nothing_secret(envelope: Envelope) -> None:
    def leaves(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [leaf for part in value.values() for leaf in leaves(part)]
        if isinstance(value, list):
            return [leaf for part in value for leaf in leaves(part)]
        return [value]

    receipt = envelope["receipt"]
    assert not [leaf for leaf in leaves(receipt) if isinstance(leaf, float)]
    assert 12_345_678 not in leaves(receipt)  # the joules that were not shown
    text = json.dumps(receipt)
    for secret in ("key_1", "hello", "PRIVATE", "4242"):
        assert secret not in text


@pytest.mark.parametrize("at_us", [0, 1, ISSUED_US, 1_790_000_002_999_999])
def test_times_are_exact_to_the_microsecond(at_us: int) -> None:
    assert epoch_us(iso(at_us)) == at_us
    assert len(iso(at_us)) == 27
