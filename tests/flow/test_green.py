"""Green energy: the choice among replicas, its receipt and its price."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from energy_cases import a_steady_trace
from gateway_process import Gateway, GatewayHome, Tenant, make_tenant
from metered_replicas import MeteredReplicas, metered_replicas
from sqlalchemy import func, select, update

from api.auditor import Auditor
from api.errors import SharedMeter
from api.replicas import RECALLED, Replicas
from billing import receipts, request_triggers
from billing.reconciliation import reconcile
from billing.tables import accounts
from engine.errors import InvalidRequest
from metering.bodies import EnergyBody
from metering.database import snapshot, transaction
from metering.energy import Efficiency, EnergySettings, open_meter
from metering.energy.replicas import SAMPLES_MIN, Figure
from metering.event_log import of_request
from metering.tables import meter_windows, requests

WATTS = {"eco": 40, "fast": 4000, "module": 1}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Boards of 40 and 4000 W, and one of 1 W of which the whole module was metered."""
    folder = tmp_path_factory.mktemp("traces")
    return {
        name: a_steady_trace(
            folder / f"{name}.jsonl",
            watts,
            f"GPU-{name}",
            "gpu_module" if name == "module" else "gpu_board",
        )
        for name, watts in WATTS.items()
    }


def _receipt(gateway: MeteredReplicas, request_id: str) -> dict[str, Any]:
    gateway.sink.wait_for(request_id)
    with snapshot(gateway.database) as connection:
        envelope = receipts.receipt(connection, None, request_id)
        assert envelope is not None
        receipts.verify(envelope, receipts.public_keys(connection))
    document: dict[str, Any] = envelope["receipt"]
    return document


def _energy_line(receipt: dict[str, Any]) -> dict[str, str]:
    [line] = [line for line in receipt["lines"] if line["component"] == "energy"]
    return dict(line)


def test_green_requests_go_to_the_replica_whose_tokens_took_the_least(
    tmp_path: Path, tiny_model: Path, traces: dict[str, Path], database_url: str
) -> None:
    home = GatewayHome(tmp_path / "home", tiny_model, database_url)
    home.path.mkdir()
    (home.path / "models").mkdir()
    (home.path / "models" / tiny_model.name).symlink_to(tiny_model)
    ran: dict[str, str] = {}
    with metered_replicas(home, traces) as gateway:

        def run(count: int, *, green: bool, at_once: bool = True) -> list[str]:
            started = []
            for number in range(count):
                request_id, replica = gateway.start(f"the and {number}", green=green)
                ran[request_id] = replica
                started.append(request_id)
                if not at_once:
                    gateway.sink.wait_for(request_id)
            for request_id in started:
                gateway.sink.wait_for(request_id)
            return started

        # Nothing is known of any replica: that is said, and nothing taken off.
        [early] = run(1, green=True)
        receipt = _receipt(gateway, early)
        assert receipt["green"]["reason"] == "not_enough_samples"
        assert (receipt["green"]["multiplier"], receipt["green"]["discount"]) == (None, None)
        assert _energy_line(receipt)["detail"] == "estimated"
        # Ordinary requests are spread by load, each replica learning what its tokens take.
        ordinary = run(3 * SAMPLES_MIN, green=False)
        assert {ran[request_id] for request_id in ordinary} == set(WATTS)
        for _ in range(10):  # those of a few requests may come too late for a receipt
            if any(each.candidate.samples < SAMPLES_MIN for each in gateway.replicas):
                run(SAMPLES_MIN, green=False)
        assert _receipt(gateway, ordinary[0])["green"] is None

        chosen = run(3, green=True, at_once=False)
        assert {ran[request_id] for request_id in chosen} == {"eco"}
        for request_id in chosen:
            receipt = _receipt(gateway, request_id)
            green, line = receipt["green"], _energy_line(receipt)
            assert (green["replica"], green["reason"]) == ("eco", "lowest")
            stated = {each["replica"]: each for each in green["candidates"]}
            assert {name for name, each in stated.items() if each["compared"]} == {"eco", "fast"}
            low, high = (Decimal(stated[name]["joules_per_token"]) for name in ("eco", "fast"))
            assert low < high
            assert stated["module"]["scope"] == "gpu_module"
            assert receipt["energy"]["devices"] == ["GPU-eco"]
            # 0.11 a million estimated joules, times 0.80.
            assert line["detail"] == "estimated, green"
            assert Decimal(line["unit_price"]) == Decimal("0.000000088")
            assert green["multiplier"] == "0.8"
            saved = Decimal(line["quantity"]) * Decimal("0.000000022")
            assert abs(Decimal(green["discount"]) - saved) <= Decimal("1e-9")

        # An engine that takes no requests is no candidate; two that can't be compared say so.
        gateway.replicas.of("eco").engine.close()
        [late] = run(1, green=True)
        assert _receipt(gateway, late)["green"]["reason"] == "not_comparable"
        meter = open_meter(EnergySettings(source="replay", replay_trace=str(traces["eco"])), 1)
        fast = gateway.replicas.of("fast")
        with pytest.raises(SharedMeter, match="GPU-eco"):
            gateway.replicas.attach(fast, meter, fast.engine.info)
        for each in gateway.replicas:  # unmetered ones have no device in common
            unmetered = open_meter(EnergySettings(source="none"), 1)
            gateway.replicas.attach(each, unmetered, each.engine.info)
            assert each.devices == ()
        with pytest.raises(InvalidRequest, match="no energy is metered here"):
            gateway.start("the", max_uj=10**6)
        for each in gateway.replicas:
            each.engine.close()
            each.recorder.close()  # the books are complete

        with snapshot(gateway.database) as connection:
            found = reconcile(connection)
            assert found.differences == ()
            assert found.totals.requests == len(ran)
            auditor = Auditor(connection, home.path)
            for request_id in (early, chosen[0], late):
                assert auditor.audit(request_id).differences == ()
            windows = connection.execute(
                select(meter_windows.c.device, func.sum(meter_windows.c.requests_uj)).group_by(
                    meter_windows.c.device
                )
            ).all()
            attributed = {device: int(energy_uj) for device, energy_uj in windows}
            stated_uj = dict.fromkeys((f"GPU-{name}" for name in WATTS), 0)
            for request_id, replica in ran.items():
                for event in of_request(connection, request_id):
                    if isinstance(event, EnergyBody):
                        assert event.device == f"GPU-{replica}"
                        stated_uj[event.device] += event.energy_uj or 0
            assert stated_uj == attributed
            debits, credits = connection.execute(
                select(func.sum(accounts.c.debits_nano), func.sum(accounts.c.credits_nano))
            ).one()
            assert debits == credits > 0
        _figures_outlive_a_gateway(gateway)


def _figures_outlive_a_gateway(gateway: MeteredReplicas) -> None:
    """Another process finds what tokens took on the same engines, and on no others."""

    def recalled() -> dict[str, Figure | None]:
        again = [replace(each, efficiency=Efficiency()) for each in gateway.replicas]
        with snapshot(gateway.database) as connection:
            Replicas(again).recall(connection)
        return {each.name: each.efficiency.figure for each in again}

    found = recalled()
    for each in gateway.replicas:
        known, figure = each.efficiency.figure, found[each.name]
        assert known is not None
        assert figure is not None
        assert (figure.basis, figure.samples) == (known.basis, min(known.samples, RECALLED))
        assert figure.uj_per_token == pytest.approx(known.uj_per_token, rel=1e-3)
    with transaction(gateway.database) as connection:
        for statement in request_triggers.drop(connection.dialect.name):
            connection.exec_driver_sql(statement)
    wider = func.replace(requests.c.engine, '"thread_count":1', '"thread_count":2')
    for other in (wider, "{}"):  # as another release may have written it
        with transaction(gateway.database) as connection:
            of_eco = update(requests).where(requests.c.replica == "eco")
            connection.execute(of_eco.values(engine=other))
        found = recalled()
        assert found["eco"] is None
        assert found["fast"] is not None


def test_with_one_replica_there_is_nothing_to_choose(gateway: Gateway, tenant: Tenant) -> None:
    with gateway.client(tenant.key) as client:
        body = {"prompt": "the", "max_tokens": 3, "energy": "green"}
        answer = client.post("/generate", json=body).raise_for_status().json()
        chat = {"model": "tiny", "prompt": "the", "max_tokens": 3, "energy": "green", "n": 2}
        told = client.post("/v1/completions", json=chat).raise_for_status()
        second = client.get(f"/generations/{told.headers['request-id']}.1").json()
        plain = client.post("/generate", json={"prompt": "the", "max_tokens": 3}).json()
    for each in (answer, second):
        green = each["receipt"]["receipt"]["green"]
        [candidate] = green.pop("candidates")
        assert green == {
            "replica": "main",
            "reason": "only_one_replica",
            "multiplier": None,
            "discount": None,
        }
        assert (candidate["replica"], candidate["compared"]) == ("main", False)
        assert "green" not in each["receipt"]["receipt"]["parameters"]
    assert plain["receipt"]["receipt"]["green"] is None


def test_a_gateway_serves_a_model_by_several_engines(
    own_home: GatewayHome, traces: dict[str, Path]
) -> None:
    own_home.settings |= {
        f"DFLASH_REPLICAS__{name.upper()}__ENERGY__{setting}": value
        for name in ("eco", "fast")
        for setting, value in (("SOURCE", "replay"), ("REPLAY_TRACE", str(traces[name])))
    }
    tenant = make_tenant(own_home, tariff="energy")
    reasons, ran = [], []
    body = {"prompt": "the and", "max_tokens": 8, "energy": "green"}
    long = body | {"max_tokens": 1500, "stream": True}
    with own_home.running() as gateway, gateway.client(tenant.key) as client:
        while "lowest" not in reasons and len(reasons) < 6 * SAMPLES_MIN:
            answer = client.post("/generate", json=body | {"seed": len(reasons)}).json()
            green = answer["receipt"]["receipt"]["green"]
            reasons.append(green["reason"])
            ran.append(green["replica"])
        quote = client.post("/estimate", json=body).raise_for_status().json()
        metrics = client.get("/metrics").text
        # The gateway dies under a request; whoever starts next ends it, as it was placed.
        with client.stream("POST", "/generate", json=long) as stream:
            orphan = stream.headers["request-id"]
            next(stream.iter_lines())
            gateway.kill()
    assert set(reasons[:-1]) == {"not_enough_samples"}
    assert set(ran) == {"eco", "fast"}, "what is not known yet is found out"
    assert (reasons[-1], ran[-1]) == ("lowest", "eco")
    assert quote["green"]["multiplier"] == green["multiplier"] == "0.8"
    assert 'dflash_engine_steps_total{replica="eco"}' in metrics
    with own_home.running() as gateway, gateway.client(tenant.key) as client:
        ended = client.get(f"/generations/{orphan}").json()
        again = client.post("/generate", json=body).json()
    assert ended["status"] == "failed"
    assert ended["receipt"]["receipt"]["green"]["reason"] == "lowest"
    green = again["receipt"]["receipt"]["green"]
    assert (green["reason"], green["replica"]) == ("lowest", "eco"), "what was measured is known"
    own_home.assert_reconciled()


def test_two_replicas_never_divide_one_meter(
    own_home: GatewayHome, traces: dict[str, Path]
) -> None:
    own_home.settings |= {
        "DFLASH_ENERGY__SOURCE": "replay",
        "DFLASH_ENERGY__REPLAY_TRACE": str(traces["eco"]),
        "DFLASH_REPLICAS": '{"a": {}, "b": {}}',
    }
    refused = own_home.dflash("serve", "--port", "0", check=False)
    assert refused.returncode != 0
    assert "replicas a and b would both be metered by GPU-eco" in refused.stderr
