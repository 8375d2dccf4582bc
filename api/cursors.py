"""Opaque page cursors: where the next page begins, in a form that clients have no use for."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from api.errors import InvalidCursor

T = TypeVar("T")

PAGE_DEFAULT = 50
PAGE_MAX = 200


def encode(listing: str, position: object) -> str:
    """A cursor of `listing` ("keys", "receipts", ...) at `position`, plain JSON values."""
    return urlsafe_b64encode(msgspec.json.encode((listing, position))).decode().rstrip("=")


def decode(listing: str, cursor: str | None, kind: type[T]) -> T | None:
    """The position that a cursor of `listing` holds; null for no cursor. Raises InvalidCursor."""
    if cursor is None:
        return None
    try:
        raw = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        name, position = msgspec.json.decode(raw, type=tuple[str, msgspec.Raw])
        if name == listing:
            return msgspec.json.decode(position, type=kind)
    except (Base64Error, UnicodeError, msgspec.DecodeError):
        pass
    raise InvalidCursor("this cursor was not given out by this listing", "cursor")


def page(
    listing: str, rows: Sequence[T], limit: int, position: Callable[[T], object]
) -> tuple[Sequence[T], str | None]:
    """Cut rows read with `limit + 1` to a page, and the cursor of the next one, if there is one."""
    if len(rows) <= limit:
        return rows, None
    shown = rows[:limit]
    return shown, encode(listing, position(shown[-1]))
