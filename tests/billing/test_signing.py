"""The signing key: made once, kept closed, and known to everybody by its public half."""

from __future__ import annotations

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import rfc8785
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from billing.errors import InvalidSigningKey
from billing.signing import (
    Signer,
    canonical_bytes,
    decode64,
    encode64,
    is_signed,
    public_keys,
)
from metering import clock
from metering.database import transaction


def test_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "receipt.pem"
    first = Signer.open(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Signer.open(path).kid == first.kid
    assert [file.name for file in path.parent.iterdir()] == ["receipt.pem"]


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    path = tmp_path / "receipt.pem"
    start = threading.Barrier(6)

    def open_it(_: int) -> str:
        start.wait()
        return Signer.open(path).kid

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(open_it, range(6)))) == 1


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "receipt.pem"
    Signer.open(path)
    path.chmod(0o640)
    with pytest.raises(InvalidSigningKey, match="chmod 600"):
        Signer.open(path)


def test_a_file_that_is_no_ed25519_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "receipt.pem"
    path.write_text("not a key")
    path.chmod(0o600)
    with pytest.raises(InvalidSigningKey, match="PEM"):
        Signer.open(path)
    path.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(InvalidSigningKey, match="Ed25519"):
        Signer.open(path)


def test_the_same_document_has_the_same_bytes_however_it_was_written(tmp_path: Path) -> None:
    signer = Signer.open(tmp_path / "receipt.pem")
    one = signer.seal({"b": 1, "a": ["é", None]})
    other = signer.seal({"a": ["é", None], "b": 1})
    assert one == other
    assert one.text == '{"a":["é",null],"b":1}'
    assert is_signed(signer.public_key, one.signature, one.text.encode())
    assert not is_signed(signer.public_key, one.signature, one.text.encode() + b" ")


def test_nothing_that_is_no_signature_passes_for_one(tmp_path: Path) -> None:
    signer = Signer.open(tmp_path / "receipt.pem")
    for signature in ("", "AA", "*", encode64(bytes(64)), "é"):
        assert not is_signed(signer.public_key, signature, b"message")
    assert not is_signed("AA", encode64(bytes(64)), b"message")


def test_base64_has_no_padding_and_comes_back() -> None:
    for data in (b"", b"a", b"ab", b"abc", bytes(range(256))):
        assert decode64(encode64(data)) == data
        assert encode64(data) == base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_a_new_key_retires_the_old_one_and_both_stay_published(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (Signer.open(tmp_path / name) for name in ("old.pem", "new.pem"))
    monkeypatch.setattr(clock, "now_us", lambda: 1_000)
    with transaction(database) as connection:
        old.register(connection)
        old.register(connection)
        assert [key["kid"] for key in public_keys(connection)["keys"]] == [old.kid]
        monkeypatch.setattr(clock, "now_us", lambda: 2_000)
        new.register(connection)
        published = public_keys(connection)["keys"]
        assert [(key["kid"], key.get("retired_at_us")) for key in published] == [
            (old.kid, 2_000),
            (new.kid, None),
        ]
        assert published[0]["x"] == old.public_key
        old.register(connection)
        assert [key.get("retired_at_us") for key in public_keys(connection)["keys"]] == [
            None,
            2_000,
        ]


_NAMES = st.text(max_size=4)
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(width=16) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150)
@given(document=st.dictionaries(_NAMES, _DOCUMENTS, max_size=5))
def test_what_is_signed_is_spelt_as_rfc_8785_spells_it(document: dict[str, object]) -> None:
    try:
        expected = rfc8785.dumps(document)
    except rfc8785.CanonicalizationError:
        with pytest.raises(rfc8785.CanonicalizationError):
            canonical_bytes(document)
    else:
        assert canonical_bytes(document) == expected
