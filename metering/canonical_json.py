"""One spelling per value, so that equal facts have equal hashes.

Keys and fields are sorted by code point and there is no insignificant white space. Floats are
refused: a fact that is priced must not depend on how a float prints.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(order="sorted")


def encode(value: Any) -> str:
    """Encode a struct or a JSON-like value; raises TypeError for a float in the latter.

    A struct is taken at its word: its fields have types, and none of them may be a float.
    """
    if not isinstance(value, msgspec.Struct):
        _refuse_floats(value)
    return _ENCODER.encode(value).decode()


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
