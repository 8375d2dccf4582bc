"""`Idempotency-Key`, per tenant and route: a repeated key never generates or bills twice.

The key is claimed in the transaction that admits its request, so there is no moment at which one
exists without the other; what a replay answers is read from the request itself. Of the body a hash
is kept, salted as the request's content is: once that is erased, the hash tells nothing, and the
key answers that it was. The mode of the API key, test or live, counts as part of the body.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from api.errors import Conflict, IdempotencyMismatch, InvalidIdempotencyKey
from api.tables import idempotency_keys
from billing import retention
from metering import content_hash
from metering.tables import requests

KEY_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's key and the body it was sent with."""

    key: str
    body_sha256: str

    @classmethod
    def of(cls, header: str | None, body: bytes) -> IdempotencyKey | None:
        """Read the header's value; raises InvalidIdempotencyKey when it can't be a key."""
        if header is None:
            return None
        if not (0 < len(header) <= KEY_CHARS_MAX and header.isprintable()):
            raise InvalidIdempotencyKey(
                f"Idempotency-Key has 1 to {KEY_CHARS_MAX} printable characters"
            )
        return cls(header, hashlib.sha256(body).hexdigest())


def claimed_by(
    connection: Connection,
    tenant_id: str,
    route: str,
    key: IdempotencyKey,
    *,
    test_mode: bool,
) -> str | None:
    """The request that holds this key, or null. Changes nothing.

    Raises Conflict when what it answered was erased, IdempotencyMismatch when it was claimed with
    another body, or by a test key where a live one asks, or the other way round.
    """
    row = connection.execute(
        select(
            idempotency_keys.c.salted_sha256,
            idempotency_keys.c.request_id,
            requests.c.content_salt,
            requests.c.test_mode,
        )
        .join(requests, requests.c.id == idempotency_keys.c.request_id)
        .where(
            idempotency_keys.c.tenant_id == tenant_id,
            idempotency_keys.c.route == route,
            idempotency_keys.c.key == key.key,
        )
    ).one_or_none()
    if row is None:
        return None
    if retention.is_erased(connection, row.request_id):
        raise Conflict(f"what {row.request_id} answered was erased; use another key")
    if row.test_mode != test_mode:
        mode = "test" if row.test_mode else "live"
        raise IdempotencyMismatch(f"this Idempotency-Key was used with a {mode} key; use another")
    if row.salted_sha256 != content_hash.of_text(row.content_salt, key.body_sha256):
        raise IdempotencyMismatch("this Idempotency-Key was used with another request body")
    return str(row.request_id)


def claim(
    connection: Connection,
    tenant_id: str,
    route: str,
    key: IdempotencyKey,
    *,
    request_id: str,
    salt: str | None,
    now_us: int,
) -> None:
    """Bind the key to a request, within the caller's transaction.

    A concurrent claim of the same key fails as an IntegrityError, which undoes the admission.
    """
    connection.execute(
        insert(idempotency_keys).values(
            tenant_id=tenant_id,
            route=route,
            key=key.key,
            salted_sha256=content_hash.of_text(salt, key.body_sha256),
            request_id=request_id,
            created_at_us=now_us,
        )
    )


def release(connection: Connection, request_id: str) -> None:
    """Give up the key of a request that was refused, so that it can be used again."""
    connection.execute(delete(idempotency_keys).where(idempotency_keys.c.request_id == request_id))
