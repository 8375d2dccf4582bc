"""The operator's signature: Ed25519 over RFC 8785 canonical JSON, and the keys to check it with.

The private key is a file that only its owner may read. Public keys are published in the database
as a JSON Web Key Set, retired ones kept, because receipts outlive keys.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import rfc8785
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import Connection, select, update

from billing.errors import InvalidSigningKey
from billing.rows import insert_once
from billing.tables import signing_keys
from metering import clock

ALGORITHM = "Ed25519"
EXACT_INTEGER_MAX = 2**53 - 1  # RFC 8785 knows no larger ones
_SORTED = msgspec.json.Encoder(order="sorted")
_GROUPS = (dict, list, tuple)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A document, its hash, and who signed it."""

    text: str  # canonical JSON: what was signed
    sha256: str
    kid: str
    signature: str  # base64url, no padding


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs documents with the operator's current key."""

    kid: str
    public_key: str  # base64url of 32 bytes
    _key: Ed25519PrivateKey

    @classmethod
    def open(cls, path: Path) -> Signer:
        """Load the key at `path`, making one, readable to its owner alone, if there is none.

        Raises InvalidSigningKey when the file is no such key, or open to others.
        """
        if not path.exists():
            _make_key(path)
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidSigningKey(f"{path} is open to others: chmod 600 {path}")
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise InvalidSigningKey(f"{path} is not an unencrypted PEM private key") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidSigningKey(f"{path} holds a key that is not Ed25519")
        public = key.public_key().public_bytes_raw()
        return cls(f"ed25519-{hashlib.sha256(public).hexdigest()[:16]}", encode64(public), key)

    @classmethod
    def replace(cls, path: Path, connection: Connection) -> Signer:
        """Put a new key in the place of the one at `path`, publish it, and retire the old one.

        What the old one signed stays verifiable by its public key; its private part is gone. No
        process may go on signing with it. A crash on the way leaves one key or the other in place,
        and whoever signs next publishes that one.
        """
        cls.open(path)  # only over what is a key of ours
        fresh = path.with_name(f"{path.name}.next")
        fresh.unlink(missing_ok=True)
        signer = cls.open(fresh)
        signer.register(connection)
        fresh.replace(path)
        return signer

    def seal(self, document: Mapping[str, Any]) -> Sealed:
        """Sign a document's canonical bytes. Changes nothing."""
        canonical = canonical_bytes(document)
        signature = encode64(self._key.sign(canonical))
        return Sealed(
            canonical.decode(), hashlib.sha256(canonical).hexdigest(), self.kid, signature
        )

    def register(self, connection: Connection) -> None:
        """Publish this key as the current one, and retire the others. Idempotent."""
        now = clock.now_us()
        inserted = insert_once(
            connection,
            signing_keys,
            {"kid": self.kid, "public_key": self.public_key, "created_at_us": now},
        )
        if not inserted:  # a key that comes back into use
            connection.execute(
                update(signing_keys)
                .where(signing_keys.c.kid == self.kid)
                .where(signing_keys.c.retired_at_us.is_not(None))
                .values(retired_at_us=None)
            )
        connection.execute(
            update(signing_keys)
            .where(signing_keys.c.kid != self.kid)
            .where(signing_keys.c.retired_at_us.is_(None))
            .values(retired_at_us=now)
        )

    def key_set(self) -> dict[str, Any]:
        """This key alone as a JSON Web Key Set."""
        return {"keys": [_jwk(self.kid, self.public_key, None)]}


def canonical_bytes(document: Mapping[str, Any]) -> bytes:
    """A document in RFC 8785's spelling; raises rfc8785.CanonicalizationError.

    What is no more than text and counts is spelt so by any encoder that sorts names, and a fast
    one takes a twentieth of the time.
    """
    if _is_plain(document):
        return _SORTED.encode(document)
    return rfc8785.dumps(dict(document))


def _is_plain(document: Mapping[str, Any]) -> bool:
    """Whether it holds neither floats, nor larger integers, nor names beyond ASCII."""
    left: list[Any] = [[document]]  # what still has members to look at
    while left:
        group = left.pop()
        if isinstance(group, dict):
            if not "".join(group).isascii():
                return False
            group = group.values()
        for value in group:
            if value is None or isinstance(value, str):
                continue
            if isinstance(value, int):
                if abs(value) > EXACT_INTEGER_MAX:
                    return False
            elif isinstance(value, _GROUPS):
                left.append(value)
            else:
                return False
    return True


def public_keys(connection: Connection) -> dict[str, Any]:
    """Every key that ever signed, as a JSON Web Key Set; `retired_at_us` beside the retired."""
    rows = connection.execute(
        select(
            signing_keys.c.kid, signing_keys.c.public_key, signing_keys.c.retired_at_us
        ).order_by(signing_keys.c.created_at_us, signing_keys.c.kid)
    )
    return {"keys": [_jwk(*row) for row in rows]}


def is_signed(public_key: str, signature: str, message: bytes) -> bool:
    """Whether the key (base64url) made the signature (base64url) over the message."""
    try:
        key = Ed25519PublicKey.from_public_bytes(decode64(public_key))
        key.verify(decode64(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def encode64(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode64(text: str) -> bytes:
    """The inverse of `encode64`; raises ValueError."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _jwk(kid: str, public_key: str, retired_at_us: int | None) -> dict[str, Any]:
    jwk: dict[str, Any] = {"kty": "OKP", "crv": ALGORITHM, "kid": kid, "x": public_key}
    return jwk if retired_at_us is None else jwk | {"retired_at_us": retired_at_us}


def _make_key(path: Path) -> None:
    """Write a new key whole or not at all; whoever comes second keeps the first one's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # 0600 from the start
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()
