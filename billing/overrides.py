"""A customer's own prices: a tariff of its own, made from another's document with some changes.

It is published and assigned like any other, so it is versioned, effective-dated, immutable and on
every receipt. It stands by itself: a later version of the tariff it was made from changes nothing
in it, until it is made anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from billing import catalogue, tariffs
from billing.catalogue import TariffVersion
from billing.errors import InvalidTariff, TariffConflict
from billing.ledger.accounts import lock_tenant
from billing.ledger.balances import currency_of

FIXED = ("schema", "name", "currency", "tenant", "base")


def name_of(tenant_id: str) -> str:
    """What a tenant's own tariff is called."""
    return f"own-{hashlib.sha256(tenant_id.encode()).hexdigest()[:20]}"


def override(
    connection: Connection,
    tenant_id: str,
    changes: Mapping[str, Any],
    from_us: int | None,
    *,
    base: str | None = None,
) -> TariffVersion:
    """Give a tenant its own prices: `changes` (RFC 7396) to a tariff's document.

    They hold from a time on, by default from now.

    `base` names the tariff to change, by default the one the tenant would pay then, or the one its
    own was made from. Raises InvalidTariff, NoTariff, UnknownTenant or TariffConflict.
    """
    if fixed := sorted(set(changes) & set(FIXED)):
        raise InvalidTariff([f"{field}: not a customer's to change" for field in fixed])
    catalogue.lock_prices(connection)
    if from_us is None:
        from_us = catalogue.from_now(connection, tenant_id)
    else:
        lock_tenant(connection, tenant_id, currency_of(connection, tenant_id))
    found = _base(connection, tenant_id, base, from_us)
    title = f"{found.document.title}, own prices"
    document = {
        **_merged({**tariffs.document(found.document), "title": title[:100]}, changes),
        "name": name_of(tenant_id),
        "tenant": tenant_id,
        "base": found.id,
    }
    published = catalogue.publish(connection, tariffs.parse(document), from_us)
    if catalogue.assigned(connection, tenant_id, from_us) != published.tariff:
        catalogue.assign(connection, tenant_id, published.tariff, from_us)
    return published


def _base(connection: Connection, tenant_id: str, name: str | None, from_us: int) -> TariffVersion:
    if name is not None:
        found = catalogue.in_force(connection, name, from_us)
        if found.document.tenant not in (None, tenant_id):
            raise TariffConflict(f"tariff {name!r} is another tenant's own")
        return found
    paid = catalogue.tariff_in_force(connection, tenant_id, from_us)
    if paid.document.base is None:
        return paid
    return catalogue.in_force(connection, paid.document.base.partition("@")[0], from_us)


def _merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7396: mappings are merged, null takes away, all else replaces."""
    merged = dict(document)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = _merged(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged
