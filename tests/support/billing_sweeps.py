"""A sweep over all tenants within a test's own transaction."""

from __future__ import annotations

from sqlalchemy import Connection, select

from billing import review
from billing.ledger import grants, holds
from billing.signing import Signer
from metering.tables import tenants


def expire_holds(connection: Connection, now_us: int) -> int:
    """Release every tenant's orphaned holds."""
    return sum(holds.expire(connection, each, now_us) for each in _tenants(connection))


def expire_grants(connection: Connection, now_us: int) -> int:
    """Book out every tenant's late grants."""
    return sum(grants.expire(connection, each, now_us) for each in _tenants(connection))


def lapse_reviews(connection: Connection, now_us: int, signer: Signer) -> int:
    """Close every tenant's late items."""
    return sum(review.lapse(connection, each, now_us, signer) for each in _tenants(connection))


def _tenants(connection: Connection) -> list[str]:
    return list(connection.scalars(select(tenants.c.id).order_by(tenants.c.id)))
