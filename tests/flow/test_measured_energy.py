"""Measured joules from end to end: a GPU's counters, played by a stub, on a signed receipt."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from example_receipts import BOARDS, example, form, nvml_stub_settings
from gateway_process import Gateway, GatewayHome, make_tenant
from sqlalchemy import select

from billing.receipts import Signer, verify
from metering.bodies import EnergyBody
from metering.database import open_database, snapshot
from metering.energy import Calibration
from metering.event_log import of_request
from metering.tables import meter_windows, request_summaries

UUIDS = [line.split()[0] for line in BOARDS.splitlines()]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Gateway]:
    """A gateway whose engine is metered by a group of two boards, and calibrated by them."""
    home = GatewayHome.create(tmp_path_factory.mktemp("measured") / "home", tiny_model)
    home.settings = nvml_stub_settings(tmp_path_factory.mktemp("nvml")) | {
        "DFLASH_ENGINE__KV_TOKENS": "512",  # experiments are as long as there is room
    }
    home.dflash("calibrate", "energy", "--seconds", "0.1")
    with home.running() as running:
        yield running


def test_measured_joules_are_signed_and_billed(gateway: Gateway) -> None:
    home = gateway.home
    tenant = make_tenant(home, tariff="energy")
    with gateway.client(tenant.key) as client:
        body = {"prompt": "the other", "max_tokens": 40, "seed": 7}
        answer = client.post("/generate", json=body).raise_for_status().json()
    envelope = answer["receipt"]
    verified = verify(envelope, Signer.open(home.path / "keys" / "receipt_ed25519.pem").key_set())
    receipt = envelope["receipt"]
    energy = receipt["energy"]
    [path] = (home.path / "calibration").rglob("1.json")
    fitted = msgspec.json.decode(path.read_bytes(), type=Calibration)
    assert fitted.meter.source == "nvml_total_energy"
    assert energy == {
        "class": "measured",
        "joules": energy["joules"],
        "source": "nvml_total_energy",
        "scope": "gpu_board",
        "method": "affine-shapley/1",
        "weights": fitted.id,
        "devices": UUIDS,
        "update_period_us": energy["update_period_us"],
        "uncertainty_pct": 5,
    }
    joules = Decimal(energy["joules"])
    assert joules > 0
    assert joules % Decimal("0.1") == 0, "finer than a tenant may see"
    assert 15_000 < energy["update_period_us"] < 300_000
    [line] = [line for line in receipt["lines"] if line["component"] == "energy"]
    assert line["detail"].startswith("measured")
    assert Decimal(line["quantity"]) <= joules
    assert Decimal(line["amount"]) > 0
    assert verified.total_nano > 0
    assert form(envelope) == form(example("measured")["receipt"]), "make the example anew"

    database = open_database(home.resolved_database_url)
    try:
        with snapshot(database) as connection:
            windows = connection.execute(select(meter_windows)).mappings().all()
            exact_uj = connection.scalar(
                select(request_summaries.c.energy_uj).where(
                    request_summaries.c.request_id == answer["id"]
                )
            )
            events = of_request(connection, answer["id"])
    finally:
        database.dispose()
    settled = [each for each in events if isinstance(each, EnergyBody)]
    assert (
        exact_uj
        == sum(each.energy_uj or 0 for each in settled)
        == sum(window["requests_uj"] for window in windows)
    )
    assert joules == Decimal(exact_uj // 100_000) / 10
    assert {each.device for each in settled} == {"+".join(UUIDS)}
    assert {window["device"] for window in windows} == {"+".join(UUIDS)}
    # 500 W of two boards, in all time that is accounted for.
    [meter_uj, lasted_ns] = [
        sum(values)
        for values in zip(
            *((each["meter_uj"], each["end_ns"] - each["start_ns"]) for each in windows),
            strict=True,
        )
    ]
    assert meter_uj * 1000 / lasted_ns == pytest.approx(500, rel=0.25)
    home.assert_reconciled()
