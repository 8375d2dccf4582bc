"""Requests that ran and were settled, through billing's own doors, without an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import billing_cases
from sqlalchemy import Engine

from billing import catalogue
from billing.catalogue import install_shipped
from billing.gate import HoldGate
from billing.ledger import credits
from billing.money import NANO
from billing.receipts import Signer
from billing.settlement import Settlement
from metering import clock
from metering import requests as usage_requests
from metering.database import transaction
from metering.requests import AdmittedRequest

PROMPT = {"prompt": "def add(a, b):"}
OUTPUT = "    return a + b\n"


@dataclass
class Desk:
    """Settles requests of one tenant after another."""

    database: Engine
    signer: Signer

    @classmethod
    def open(cls, database: Engine, folder: Path) -> Desk:
        desk = cls(database, Signer.open(folder / "receipt.pem"))
        with transaction(database) as connection:
            install_shipped(connection)
            desk.signer.register(connection)
        return desk

    def fund(self, tenant_id: str, *, tariff: str = "composite", credit: int = 10) -> None:
        """Give a tenant a tariff and so many currency units."""
        with transaction(self.database) as connection:
            catalogue.assign(connection, tenant_id, tariff, clock.now_us())
            credits.grant(connection, tenant_id, credit * NANO, "tests")

    def settle(
        self,
        tenant_id: str,
        key_id: str,
        request_id: str,
        *units: Any,
        output: str = OUTPUT,
        carries: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Admit, run and settle one request whose summary has these units and fields.

        `carries` is what the request itself brought: end user, tags, project.
        """
        now = clock.now_us()
        with transaction(self.database) as connection:
            tariff = catalogue.tariff_in_force(connection, tenant_id, now)
            summary = billing_cases.summary(
                *units,
                request_id=request_id,
                tenant_id=tenant_id,
                tariff_version_id=tariff.id,
                started_at_us=now,
                ended_at_us=now,
                **fields,
            )
            admitted = AdmittedRequest(
                id=request_id,
                tenant_id=tenant_id,
                key_id=key_id,
                model=summary.model,
                route="generate",
                tariff_version_id=tariff.id,
                prompt=PROMPT,
                input_tokens=summary.input_tokens,
                max_tokens=max(1, summary.output_tokens),
                max_cost_nano=None,
                test_mode=False,
                started_at_us=now,
                **({"parameters": {"seed": 1}, "end_user": None, "tags": None} | (carries or {})),
            )
            usage_requests.admit(connection, admitted)
            HoldGate().admit(connection, admitted, expires_at_us=now + 60_000_000)
            usage_requests.finalise(connection, summary, output)
            Settlement(self.signer, billing_cases.ENGINE).settle(connection, summary)
