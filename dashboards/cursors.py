"""Where the next page of a list begins, as an opaque word in a link."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import Annotated, TypeVar

import msgspec
from litestar.exceptions import NotFoundException

from dashboards.injected import RECORD_ID

T = TypeVar("T")


# A forged cursor must not reach the database with what it would choke on.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
RecordId = Annotated[str, msgspec.Meta(pattern=RECORD_ID)]


class TimedPosition(msgspec.Struct, frozen=True, array_like=True):
    """A time in epoch microseconds, and an id that orders equal times."""

    at_us: Count
    id: RecordId


class SequencePosition(msgspec.Struct, frozen=True, array_like=True):
    """A place in an append-only sequence."""

    seq: Count


def encode(position: object) -> str:
    """The cursor of a position, plain JSON values."""
    return urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def decode(cursor: str | None, kind: type[T]) -> T | None:
    """The position of a cursor; null for none. NotFound for a word that is no cursor."""
    if not cursor:
        return None
    try:
        raw = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=kind)
    except (Base64Error, UnicodeError, msgspec.DecodeError):
        raise NotFoundException("This link leads to no page of the list.") from None
