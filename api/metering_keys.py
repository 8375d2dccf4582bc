"""Metering keys: for reporting one source's usage of the tenants they are bound to, no more."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from api import key_format, tenants
from api.errors import InvalidKey, InvalidParameter, MissingKey, NotFound, RevokedKey
from metering import clock
from metering.ingest_tables import metering_key_tenants, metering_keys

_SOURCE = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,99}")


@dataclass(frozen=True, slots=True)
class MeteringKey:
    """A metering key as the database knows it: everything but the secret."""

    id: str
    name: str
    source: str
    tenant_ids: frozenset[str]
    last_four: str
    created_at_us: int
    revoked_at_us: int | None


def create(
    connection: Connection, *, name: str, source: str, tenant_ids: Iterable[str]
) -> tuple[MeteringKey, str]:
    """Issue a key and its secret, which exists nowhere else.

    Raises NotFound for an unknown tenant, InvalidParameter for a source that is none, or ours.
    """
    tenants.check_name(name)
    bound = frozenset(tenant_ids)
    if not _SOURCE.fullmatch(source) or source.startswith("dflash"):
        raise InvalidParameter(
            "a source is 1 to 100 of a-z, 0-9 and ._/:-, and not one of ours", "source"
        )
    if not bound:
        raise InvalidParameter("a metering key is bound to one tenant at least", "tenant_ids")
    for tenant_id in sorted(bound):
        tenants.require(connection, tenant_id)
    minted = key_format.mint(test_mode=False)
    key_id = f"m{minted.key_id}"
    now = clock.now_us()
    connection.execute(
        insert(metering_keys).values(
            id=key_id,
            name=name,
            source=source,
            secret_sha256=minted.sha256,
            last_four=minted.text[-4:],
            created_at_us=now,
        )
    )
    connection.execute(
        insert(metering_key_tenants),
        [{"key_id": key_id, "tenant_id": tenant_id} for tenant_id in sorted(bound)],
    )
    return require(connection, key_id), minted.text


def identify(connection: Connection, presented: str | None) -> MeteringKey:
    """The living key behind a presented secret. Raises MissingKey, InvalidKey or RevokedKey."""
    if not presented:
        raise MissingKey("send your metering key as 'Authorization: Bearer dfk_...'")
    text = key_format.read(presented)
    found = (
        None
        if text is None
        else connection.scalar(
            select(metering_keys.c.id).where(metering_keys.c.secret_sha256 == text.sha256)
        )
    )
    if found is None:
        raise InvalidKey("this is not a valid metering key")
    key = require(connection, found)
    if key.revoked_at_us is not None:
        raise RevokedKey("this key was revoked")
    return key


def revoke(connection: Connection, key_id: str) -> MeteringKey:
    """End a key at once; a second time changes nothing. Raises NotFound."""
    require(connection, key_id)
    connection.execute(
        update(metering_keys)
        .where(metering_keys.c.id == key_id, metering_keys.c.revoked_at_us.is_(None))
        .values(revoked_at_us=clock.now_us())
    )
    return require(connection, key_id)


def listing(connection: Connection) -> list[MeteringKey]:
    """Every metering key, oldest first, revoked ones too."""
    ids = connection.scalars(
        select(metering_keys.c.id).order_by(metering_keys.c.created_at_us, metering_keys.c.id)
    ).all()
    return [require(connection, key_id) for key_id in ids]


def require(connection: Connection, key_id: str) -> MeteringKey:
    """A key by its id. Raises NotFound."""
    row = connection.execute(
        select(metering_keys).where(metering_keys.c.id == key_id)
    ).one_or_none()
    if row is None:
        raise NotFound(f"no metering key {key_id}")
    bound = connection.scalars(
        select(metering_key_tenants.c.tenant_id).where(metering_key_tenants.c.key_id == key_id)
    )
    return MeteringKey(
        id=row.id,
        name=row.name,
        source=row.source,
        tenant_ids=frozenset(bound),
        last_four=row.last_four,
        created_at_us=row.created_at_us,
        revoked_at_us=row.revoked_at_us,
    )
