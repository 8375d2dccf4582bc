"""Opaque page cursors: where the next page begins, in a form that clients have no use for."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from api.errors import InvalidCursor

T = TypeVar("T")
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,64}(?!\n)$")]

_NAMED = msgspec.json.Decoder(tuple[str, msgspec.Raw])
_PLACES: msgspec.json.Decoder[tuple[int, str]] = msgspec.json.Decoder(tuple[Number, Id])
_NUMBERS: msgspec.json.Decoder[int] = msgspec.json.Decoder(Number)

PAGE_DEFAULT = 50
PAGE_MAX = 200


def encode(listing: str, position: object) -> str:
    """A cursor of `listing` ("keys", "receipts", ...) at `position`, plain JSON values."""
    return urlsafe_b64encode(msgspec.json.encode((listing, position))).decode().rstrip("=")


def decode(listing: str, cursor: str | None) -> tuple[int, str] | None:
    """The moment and id that a cursor of `listing` holds; null for no cursor.

    Raises InvalidCursor, also for a forged one that no database could compare with.
    """
    if cursor is None:
        return None
    return _read(listing, cursor, _PLACES)


def decode_number(listing: str, cursor: str | None) -> int | None:
    """The number that a cursor of `listing` holds; null for no cursor. Raises InvalidCursor."""
    if cursor is None:
        return None
    return _read(listing, cursor, _NUMBERS)


def page(
    listing: str, rows: Sequence[T], limit: int, position: Callable[[T], object]
) -> tuple[Sequence[T], str | None]:
    """Cut rows read with `limit + 1` to a page, and the cursor of the next one, if there is one."""
    if len(rows) <= limit:
        return rows, None
    shown = rows[:limit]
    return shown, encode(listing, position(shown[-1]))


def _read(listing: str, cursor: str, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        raw = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        name, position = _NAMED.decode(raw)
        if name == listing:
            return decoder.decode(position)
    except (Base64Error, UnicodeError, msgspec.DecodeError):
        pass
    raise InvalidCursor("this cursor was not given out by this listing", "cursor")
