"""The door of a house: what its keys are admitted with, and the end of what was."""

from __future__ import annotations

import msgspec
from api_cases import House
from billing_cases import summary
from metering_cases import INFO
from sqlalchemy import Engine

from api.admission import Admission, Replay
from api.inference.idempotency import IdempotencyKey
from api.inference.orders import Order
from api.roles import Principal, Role
from billing.gate import HoldGate
from engine.requests import SamplingParams
from metering import requests as usage
from metering.database import transaction
from metering.events import EnergyClass
from metering.queries import request


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

    def end(self, request_id: str, at_us: int, *, joules: float = 1) -> None:
        """Let a request be final and summarised; it is not settled."""
        with transaction(self.database) as connection:
            row = request(connection, None, request_id)
            assert row is not None
            final = summary(
                request_id=request_id,
                tenant_id=row.tenant_id,
                tariff_version_id=row.tariff_version_id,
            )
            energy = msgspec.structs.replace(
                final.energy, energy_class=EnergyClass.ESTIMATED, energy_uj=round(joules * 10**6)
            )
            usage.finalise(
                connection,
                msgspec.structs.replace(final, ended_at_us=at_us, energy=energy),
                "text",
            )
