"""Hashes of a request's content: of a salt of its own and then the content, as UTF-8.

The salt stands in the request's row and in what its tenant is given beside the receipt. Erasure
takes it from the row; then nothing that is stored confirms a guess of what was said. Requests of
before salts have none, and their hashes are of the content alone.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

SALT_BYTES = 32


def new_salt() -> str:
    """A salt for one request: hex of 32 random bytes."""
    return secrets.token_hex(SALT_BYTES)


def begin(salt: str | None) -> _Hash:
    """A SHA-256 that is to be fed content; raises ValueError for a salt that is none."""
    if salt is None:
        return hashlib.sha256()
    found = bytes.fromhex(salt)
    if len(found) != SALT_BYTES:
        raise ValueError(f"a salt is {SALT_BYTES} bytes")
    return hashlib.sha256(found)


def of_text(salt: str | None, text: str) -> str:
    """Hex SHA-256 of a whole text."""
    digest = begin(salt)
    digest.update(text.encode())
    return digest.hexdigest()
