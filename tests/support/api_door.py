"""The door of a house: what its keys are admitted with, the wait before it, and the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pytest
from api_cases import House, make_house
from billing_cases import summary, tariff
from metering_cases import INFO
from sqlalchemy import Connection, Engine

from api import admission
from api.admission import Admission, Replay
from api.inference.idempotency import IdempotencyKey
from api.inference.orders import Order
from api.roles import Principal, Role
from billing import catalogue
from billing.gate import HoldGate
from billing.ledger import accounts, credits
from billing.tariffs import Tariff
from engine.requests import SamplingParams
from metering import requests as usage
from metering.database import transaction
from metering.events import EnergyClass, RequestSummary
from metering.queries import request


def furnished(database: Engine, credit_nano: int = 10**12, *, pays: Tariff | None = None) -> House:
    """A tenant with credit, on the tariff `test`."""
    house = make_house(database)
    with transaction(database) as connection:
        catalogue.install_shipped(connection)
        catalogue.publish(connection, pays or tariff(), 0)
        catalogue.assign(connection, house.tenant_id, "test", 0)
        credits.grant(connection, house.tenant_id, credit_nano, "first")
    return house


class Door:
    """Admits orders of a tenant's keys, and ends what was admitted."""

    def __init__(self, database: Engine, house: House) -> None:
        self.database = database
        self.house = house
        self.admission = Admission(database, HoldGate(), 10_000, 120, engine=lambda: INFO)

    def admit(
        self,
        *,
        role: Role = Role.DEVELOPER,
        max_tokens: int = 10,
        key: IdempotencyKey | None = None,
        key_id: str | None = None,
        choices: int = 1,
    ) -> str:
        """Admit an order; the id of the first of its choices' requests."""
        key_id = key_id or self.house.key_ids[role]
        principal = Principal(key_id, self.house.tenant_id, role, False)
        order = Order(
            model="tiny",
            route="generate",
            prompt="hello",
            input_ids=(1,) * 20,
            max_tokens=max_tokens,
            max_cost_nano=None,
            sampling=SamplingParams(),
            stop=(),
            draft=True,
            deadline_ms=None,
            end_user="ann",
            tags={"team": "red"},
            choices=choices,
        )
        admitted = self.admission.admit(principal, order, key)
        if isinstance(admitted, Replay):
            return admitted.request_id
        assert len(admitted) == choices
        return admitted[0].usage.id

    def end(
        self, request_id: str, at_us: int, *, joules: float = 1, **fields: Any
    ) -> RequestSummary:
        """Let a request be final and summarised; it is not settled."""
        with transaction(self.database) as connection:
            row = request(connection, None, request_id)
            assert row is not None
            final = summary(
                request_id=request_id,
                tenant_id=row.tenant_id,
                tariff_version_id=row.tariff_version_id,
                **fields,
            )
            energy = msgspec.structs.replace(
                final.energy, energy_class=EnergyClass.ESTIMATED, energy_uj=round(joules * 10**6)
            )
            final = msgspec.structs.replace(final, ended_at_us=at_us, energy=energy)
            usage.finalise(connection, final, "text")
        return final


class BeforeTheLock:
    """Does something once, just before this database's next writer has what it must wait for.

    SQLite's writers wait for the whole file as they begin, PostgreSQL's for a tenant.
    """

    def __init__(self, database: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._act: Callable[[], object] | None = None
        self._database = database
        lock = accounts.lock

        def arrive(connection: Connection, wanted: Any) -> Any:
            if connection.engine is database and database.dialect.name == "postgresql":
                self._once()
            return lock(connection, wanted)

        for module in (accounts, catalogue):
            monkeypatch.setattr(module, "lock", arrive)
        monkeypatch.setattr(admission, "transaction", self.transaction)

    def __call__(self, act: Callable[[], object]) -> None:
        self._act = act

    def transaction(
        self, database: Engine, *, durable: bool = True
    ) -> AbstractContextManager[Connection]:
        """As `metering.database.transaction`."""
        if database is self._database and database.dialect.name == "sqlite":
            self._once()
        return transaction(database, durable=durable)

    def _once(self) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()

    @property
    def is_passed(self) -> bool:
        """Whether somebody has come to the lock."""
        return self._act is None
