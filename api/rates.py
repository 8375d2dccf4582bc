"""The rate limit of a lineage of keys: counted in the database, so that it holds across processes.

A sliding window of a minute, from two counts: this minute's, and the share of the last one's that
the window still covers. The count and its check are one statement, so parallel requests can't
pass it together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from api.errors import RateLimited
from api.tables import rate_windows
from metering.prepared import Prepared

MINUTE_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a key may still do. `reset_s` is when this minute ends."""

    limit: int
    remaining: int
    reset_s: int

    @property
    def headers(self) -> dict[str, str]:
        """As draft-ietf-httpapi-ratelimit-headers-09 writes it."""
        return {
            "RateLimit-Policy": policy(self.limit),
            "RateLimit": f'"requests";r={self.remaining};t={self.reset_s}',
        }


def policy(limit: int, unit: str = "requests") -> str:
    """The value of `RateLimit-Policy`; what runs at once has no window."""
    window = "" if unit == "concurrent-requests" else ";w=60"
    return f'"{unit}";q={limit}{window}'


def count(connection: Connection, lineage_id: str, limit: int, now_us: int) -> Allowance:
    """Count one of a lineage's `limit` requests a minute. Raises RateLimited, counting nothing.

    It counts within the caller's transaction: one that is rolled back was not a request.
    """
    minute, elapsed_us = divmod(now_us, MINUTE_US)
    before = _counted(connection, lineage_id, minute - 1)
    # The last minute's requests that still lie in the window, rounded up.
    carried = -(-before * (MINUTE_US - elapsed_us) // MINUTE_US)
    used = _increment(connection, lineage_id, minute, at_most=limit - carried)
    if used is None:
        current = _counted(connection, lineage_id, minute)
        wait_us = _wait_us(limit, before, current, elapsed_us)
        raise RateLimited(limit, max(1, math.ceil(wait_us / 1_000_000)))
    if used == 1:
        _FORGET.run(connection, {"of_key": lineage_id, "before": minute - 1})
    reset_s = math.ceil((MINUTE_US - elapsed_us) / 1_000_000)
    return Allowance(limit, max(0, limit - carried - used), reset_s)


_FORGET = Prepared(
    delete(rate_windows).where(
        rate_windows.c.key_id == bindparam("of_key"), rate_windows.c.minute < bindparam("before")
    )
)
_COUNTED = Prepared(
    select(rate_windows.c.requests).where(
        rate_windows.c.key_id == bindparam("key_id"), rate_windows.c.minute == bindparam("minute")
    )
)


def _counted(connection: Connection, key_id: str, minute: int) -> int:
    return _COUNTED.value(connection, {"key_id": key_id, "minute": minute}) or 0


def _increment(connection: Connection, key_id: str, minute: int, *, at_most: int) -> int | None:
    """Add one to the minute's count, if that stays within `at_most`; the count, or null."""
    if at_most < 1:
        return None
    values = {"key_id": key_id, "minute": minute, "requests": 1, "at_most": at_most}
    return _COUNTING.value(connection, values)


def _counting(dialect: str) -> ReturningInsert[int]:
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return (
        insert(rate_windows)
        .on_conflict_do_update(
            index_elements=[rate_windows.c.key_id, rate_windows.c.minute],
            set_={"requests": rate_windows.c.requests + 1},
            where=rate_windows.c.requests < bindparam("at_most"),
        )
        .returning(rate_windows.c.requests)
    )


_COUNTING = Prepared(_counting)


def _wait_us(limit: int, before: int, current: int, elapsed_us: int) -> int:
    """How long until one more request would pass, if nobody else sends one.

    A minute's count weighs less and less during the next one: `count` requests leave room for one
    more among `limit` once `count * (1 - elapsed) <= limit - 1 - current`.
    """
    if current < limit:
        return _room_at_us(before, limit - 1 - current) - elapsed_us
    return MINUTE_US - elapsed_us + _room_at_us(current, limit - 1)


def _room_at_us(count: int, room: int) -> int:
    """The moment of a minute from which the last one's `count` weighs at most `room`."""
    return max(0, MINUTE_US - room * MINUTE_US // count) if count else 0
