"""One spelling per value, so that equal facts have equal hashes.

Keys are sorted by code point, there is no insignificant whitespace, and non-ASCII text is
escaped, so that a stored body never holds a raw NUL, which PostgreSQL refuses in text. Floats are
refused outright: a fact that is priced must not depend on how a float prints.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec


def encode(value: Any) -> str:
    """Encode a struct or a JSON-like value; raises TypeError for a float anywhere in it."""
    plain = msgspec.to_builtins(value)
    _refuse_floats(plain)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def sha256(text: str) -> str:
    """Hex SHA-256 of the text's UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_floats(value: Any) -> None:
    if isinstance(value, float):
        raise TypeError(f"{value!r} is a float; state it as an integer or a decimal string")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_floats(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_floats(item)
