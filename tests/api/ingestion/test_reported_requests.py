"""A reported event is a request like any other to whoever reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from api_app import make_client
from api_cases import HeldClock, bearer, make_house
from api_settled import Desk
from billing_cases import ENGINE
from outside_reports import report
from sqlalchemy import Engine

from api.inference.routes import generation, generation_trace
from api.usage.billing_routes import read_receipt
from billing import outside
from billing.settlement import Settlement
from metering import clock
from metering.ingestion.outside import request_id


@pytest.mark.parametrize(
    ("joules", "shown", "energy_class"),
    # An explicit zero is a measurement; what was not reported is missing.
    [("2.5", "2.5", "reported"), ("0", "0", "reported"), (None, None, "unavailable")],
)
def test_it_is_read_as_what_was_reported_with_what_is_not_known_as_null(
    database: Engine,
    tmp_path: Path,
    held_clock: HeldClock,
    joules: str | None,
    shown: str | None,
    energy_class: str,
) -> None:
    desk, house = Desk.open(database, tmp_path), make_house(database)
    desk.fund(house.tenant_id)
    held_clock.advance(3600)
    now_us = clock.now_us()
    data: dict[str, Any] = {"energy_joules": joules}
    report(database, 1, now_us - 10**6, tenant_id=house.tenant_id, now_us=now_us, **data)
    outside.settle_waiting(database, Settlement(desk.signer, ENGINE))
    reported = request_id(house.tenant_id, "vllm", "event-1")
    with make_client(database, generation, generation_trace, read_receipt) as client:
        for key in (house.owner, house.developer, house.operator):
            answer = client.get(f"/generations/{reported}", headers=bearer(key))
            assert answer.status_code == 200, answer.text
        read = answer.json()
        trace = client.get(f"/generations/{reported}/trace", headers=bearer(house.developer))
        receipt = client.get(f"/receipts/{reported}", headers=bearer(house.finance))
    assert (read["seed"], read["confidence"], read["review"]) == (None, None, None)
    usage = read["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (20, 10)
    assert (usage["joules"], usage["energy_class"]) == (shown, energy_class)
    assert (trace.status_code, trace.json()["blocks"]) == (200, [])
    assert receipt.json()["receipt"] == read["receipt"]
    assert read["receipt"]["receipt"]["energy"]["class"] == energy_class
    assert read["receipt"]["receipt"]["energy"]["joules"] == shown
