"""The page of what has no price: named with its reason, and gone once it has one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from browser_pages import World
from litestar.testing import TestClient
from sqlalchemy import Engine, delete

from billing import catalogue, outside
from billing.receipt_documents import iso
from billing.settlement import Settlement
from billing.tables import tenant_tariffs
from metering import clock
from metering.database import transaction
from metering.ingestion import envelopes, intake


def test_what_has_no_price_is_shown_with_its_reason_until_it_has_one(
    sqlite_database: Engine, tmp_path: Path
) -> None:
    world = World(sqlite_database, tmp_path)
    tenant_id, now_us = world.house.tenant_id, clock.now_us()
    with transaction(sqlite_database) as connection:
        connection.execute(delete(tenant_tariffs))
    raw = json.dumps(
        {
            "specversion": "1.0",
            "id": "event-7",
            "source": "vllm",
            "type": "dev.dflash.usage.reported.v1",
            "subject": tenant_id,
            "time": iso(now_us),
            "data": {"model": "other", "input_tokens": 7, "output_tokens": 9},
        }
    ).encode()
    read = envelopes.read(raw, source="vllm", tenant_ids=frozenset({tenant_id}), now_us=now_us)
    intake.take(sqlite_database, "mkey_1", [read])
    settlement = Settlement(world.desk.signer)
    with TestClient(world.app()) as client:
        form = client.get("/dashboard/sign-in").text
        token = re.search(r'name="csrf_token" value="([^"]+)"', form)
        assert token is not None
        signed = {"key": world.house.operator, "csrf_token": token[1]}
        client.post("/dashboard/sign-in", data=signed)

        def shown() -> str:
            return client.get("/dashboard/unrated").text

        assert "event-7" not in shown()
        assert '<td class="num" id="waiting">1</td>' in shown()
        assert outside.settle_waiting(sqlite_database, settlement).unrated == 1
        assert "event-7" in shown()
        assert "tariff" in shown()
        with transaction(sqlite_database) as connection:
            catalogue.assign(connection, tenant_id, "composite", 0)
        assert outside.settle_waiting(sqlite_database, settlement).settled == 1
        assert "event-7" not in shown()
        assert "Everything that was tried has a price" in shown()
