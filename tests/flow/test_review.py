"""Answers held for a reviewer, through the real gateway: kept back, corrected, delivered again."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
from flow_streams import events
from gateway_process import Gateway, GatewayHome, make_tenant
from labels import reviewed
from sqlalchemy import Engine, select

from api import keys, tenants
from api.roles import Role
from billing.credit_tables import notices
from metering import calibration, content_hash
from metering.calibration.fitting import fit
from metering.calibration.reports import Report
from metering.database import open_database, snapshot, transaction
from metering.tables import requests

PROMPT = {"prompt": "write to ann@mail.example", "max_tokens": 12, "seed": 7, "temperature": 1.5}
TEXT = {"prompt": "hello", "max_tokens": 6, "temperature": 1.5, "seed": 3, "n": 2}


def test_a_doubtful_answer_waits_for_its_reviewer_and_comes_back_corrected(
    own_home: GatewayHome,
) -> None:
    """Given a tenant that has doubtful answers held, and a model whose every answer is doubtful."""
    own_home.settings = {"DFLASH_SWEEP_INTERVAL_S": "0.2"}
    tenant = make_tenant(own_home)
    database = open_database(own_home.resolved_database_url)
    with transaction(database) as connection:
        owner = keys.create(connection, tenant_id=tenant.id, role=Role.OWNER, name="o").secret
        reviewer = keys.create(connection, tenant_id=None, role=Role.REVIEWER, name="r").secret
        tenants.change(connection, tenant.id, review_opt_in=True)
    with own_home.running() as gateway:
        with gateway.client(owner) as client:
            held = client.patch(f"/admin/tenants/{tenant.id}", json={"review_delivery": "held"})
            assert held.raise_for_status().json()["review_delivery"] == "held"
        request_id = keep_back(gateway, tenant.key)
        give_back(gateway, tenant.key, reviewer, request_id)
        take_up_a_calibration(gateway, database, tenant.key, request_id)
    with snapshot(database) as connection:
        told = connection.scalars(
            select(notices.c.data).where(notices.c.type == "review.resolved")
        ).one()
        salt = connection.scalar(select(requests.c.content_salt).where(requests.c.id == request_id))
    outcome = json.loads(told)
    assert outcome["outcome_url"] == f"/generations/{request_id}"
    corrected = content_hash.of_text(salt, "Ask ann@mail.example.")
    assert outcome["edited_output_sha256"] == corrected
    assert "ann@" not in told
    refused = own_home.dflash("calibrate", "confidence", check=False)
    assert refused.returncode == 1
    assert "uncalibrated" in refused.stdout
    database.dispose()


def keep_back(gateway: Gateway, key: str) -> str:
    """Nothing of a held answer reaches the client, whichever way it asks."""
    with gateway.client(key) as client:
        headers = {"idempotency-key": "one"}
        whole = client.post("/generate", json=PROMPT, headers=headers).raise_for_status().json()
        assert (whole["output"], whole["logprobs"]) == (None, None)
        assert (whole["review"]["state"], whole["review"]["withheld"]) == ("queued", True)
        assert whole["receipt"]["receipt"]["review"]["delivery"] == "held"
        again = client.post("/generate", json=PROMPT, headers=headers).json()
        assert again == whole
        streamed = {**PROMPT, "stream": True, "top_logprobs": 1}
        for _ in range(2):  # live, then replayed
            with client.stream(
                "POST", "/generate", json=streamed, headers={"idempotency-key": "two"}
            ) as response:
                [(name, view)] = list(events(response))
            assert (name, view["output"]) == ("receipt", None)
        (model,) = client.get("/v1/models").raise_for_status().json()["data"]
        text = {**TEXT, "model": model["id"]}
        answer = client.post("/v1/completions", json=text).raise_for_status().json()
        for choice in answer["choices"]:
            assert (choice["finish_reason"], choice["text"]) == ("content_filter", "")
        with client.stream("POST", "/v1/completions", json={**text, "stream": True}) as response:
            parts = [part for _, part in events(response) if part]
        assert [part["choices"][0]["text"] for part in parts] == ["", ""]
    return str(whole["id"])


def give_back(gateway: Gateway, key: str, reviewer: str, request_id: str) -> None:
    """The reviewer sees what the tenant doesn't, its persons hidden, and corrects it."""
    address = f"/review/rev_{request_id}"
    with gateway.client(reviewer) as client:
        shown = client.get(address).raise_for_status().json()
        assert shown["prompt"] == {"prompt": "write to [email 1]"}
        assert isinstance(shown["output"], str)
        token = client.post(f"{address}/claim").raise_for_status().json()["token"]
        verdict = {
            "token": token,
            "verdict": "edit",
            "reasons": ["incorrect"],
            "edited_output": "Ask [email 1].",
        }
        resolved = client.post(f"{address}/resolve", json=verdict).raise_for_status().json()
        assert resolved["state"] == "resolved"
        mine = client.get("/review/accounts").raise_for_status().json()["accounts"]
        assert [account["due"] for account in mine] == [resolved["fee"]]
        assert client.get("/review/standing").json()["waiting"] >= 4
    with gateway.client(key) as client:
        view = client.get(f"/generations/{request_id}").raise_for_status().json()
    assert view["review"]["corrected_output"] == "Ask ann@mail.example."
    assert (view["review"]["withheld"], view["review"]["verdict"]) == (False, "edit")
    digest = content_hash.of_text(view["receipt"]["content_salt"], view["output"])
    assert digest == view["receipt"]["receipt"]["output"]["sha256"]


def take_up_a_calibration(gateway: Gateway, database: Engine, key: str, request_id: str) -> None:
    """A calibration of this model file is taken up while it runs, and named on what it scored."""
    with gateway.client(key) as client:
        model = client.get(f"/generations/{request_id}").json()["receipt"]["receipt"]["model"]
        labels = reviewed(4000, audit_ppm=50_000)
        report: Report = fit(model["name"], model["checksum"], labels)
        with transaction(database) as connection:
            document = msgspec.json.encode(report)
            assert calibration.store(connection, report.calibration(), document)
            assert not calibration.store(connection, report.calibration(), document)
        deadline = time.monotonic() + 30
        confidence: dict[str, Any] = {"calibration": None}
        while confidence["calibration"] is None and time.monotonic() < deadline:
            time.sleep(0.2)
            view = client.post("/generate", json=PROMPT).raise_for_status().json()
            confidence = view["confidence"]
        assert confidence["calibration"] == report.id
        expected = report.calibration().calibrated("request", confidence["geo_mean"])
        assert (confidence["calibrated"], confidence["basis"]) == (expected, "calibrated")
        signed = view["receipt"]["receipt"]["confidence"]
        assert (signed["calibrated"], signed["calibration"]) == (expected, report.id)
        audited = client.post(f"/generations/{view['id']}/audit").raise_for_status().json()
        assert audited["differences"] == []
