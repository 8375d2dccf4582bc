"""A clock that tests hold, and the tenants and keys that they act as."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from sqlalchemy import Engine

from api import keys, tenants
from api.keys import IssuedKey
from api.roles import Role
from metering import clock
from metering.database import transaction

NOW_US = 1_796_083_200_000_000  # 2026-12-01T00:00:00Z


class HeldClock:
    """The wall clock, standing still until a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now_us: int = NOW_US) -> None:
        self.now_us = now_us
        monkeypatch.setattr(clock, "now_us", lambda: self.now_us)

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)


@dataclass(frozen=True)
class House:
    """A tenant with a key of each of its roles, and the operator's two keys."""

    tenant_id: str
    owner: str
    finance: str
    developer: str
    operator: str
    reviewer: str
    key_ids: dict[Role, str]


def make_house(database: Engine, name: str = "Acme") -> House:
    """Create a tenant and all five keys."""
    with transaction(database) as connection:
        tenant = tenants.create(connection, name=name)
        issued = {role: _issue(connection, tenant.id, role) for role in Role}
    return House(
        tenant_id=tenant.id,
        **{role.value: key.secret for role, key in issued.items()},
        key_ids={role: key.key.id for role, key in issued.items()},
    )


def _issue(connection, tenant_id: str, role: Role) -> IssuedKey:
    owner = tenant_id if role.of_tenant else None
    return keys.create(connection, tenant_id=owner, role=role, name=f"{role} of tests")


def bearer(secret: str) -> dict[str, str]:
    """The headers that present a key."""
    return {"authorization": f"Bearer {secret}"}
