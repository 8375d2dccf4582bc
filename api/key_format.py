"""What an API key looks like: `dfk_live_<id>_<secret><checksum>`, all base62.

The secret is 32 random bytes. The checksum is a CRC-32 of everything before it, so that a typo is
told from an unknown key without asking the database, and leak scanners have little to guess.
"""

from __future__ import annotations

import re
import secrets
import zlib
from dataclasses import dataclass
from hashlib import sha256

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_CHARS = 16
SECRET_BYTES = 32
SECRET_CHARS = 43  # 62^43 > 2^256
CHECKSUM_CHARS = 6  # 62^6 > 2^32

_SHAPE = re.compile(
    rf"(dfk_(?P<mode>live|test)_(?P<id>[0-9A-Za-z]{{{ID_CHARS}}})_[0-9A-Za-z]{{{SECRET_CHARS}}})"
    rf"(?P<checksum>[0-9A-Za-z]{{{CHECKSUM_CHARS}}})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class KeyText:
    """A well-formed key. `text` is the secret as presented: never stored, never logged."""

    key_id: str
    test_mode: bool
    text: str

    @property
    def sha256(self) -> str:
        """What the database keeps. A plain hash will do: the secret has 256 bits of its own."""
        return sha256(self.text.encode("ascii")).hexdigest()

    def __repr__(self) -> str:
        return f"KeyText({self.key_id})"


def mint(*, test_mode: bool) -> KeyText:
    """Draw a new key. Nothing is stored."""
    public = "".join(secrets.choice(ALPHABET) for _ in range(ID_CHARS))
    secret = _base62(int.from_bytes(secrets.token_bytes(SECRET_BYTES)), SECRET_CHARS)
    body = f"dfk_{'test' if test_mode else 'live'}_{public}_{secret}"
    return KeyText(f"key_{public}", test_mode, body + _checksum(body))


def read(presented: str) -> KeyText | None:
    """Read a presented key; null when its shape or checksum is wrong."""
    match = _SHAPE.fullmatch(presented)
    if match is None or match["checksum"] != _checksum(match[1]):
        return None
    return KeyText(f"key_{match['id']}", match["mode"] == "test", presented)


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), CHECKSUM_CHARS)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
