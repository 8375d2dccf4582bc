"""Spending divided by what requests carry, and charges corrected, over HTTP and the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_app import make_client
from api_cases import HeldClock, House, bearer
from api_settled import Desk
from billing_cases import STARTED_US, summary
from billing_world import FAR_US, add_request, add_tenant, ended, settlement
from click.testing import CliRunner
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api.admin.spending_routes import refund_charge
from api.usage.billing_routes import read_receipt
from api.usage.spending_routes import read_spending
from billing.gate import HoldGate
from billing.spending import Division, spending
from dflash.cli import load
from metering.cli_context import CliContext
from metering.database import snapshot, transaction

Client = TestClient[Litestar]


def test_spending_is_divided_by_key_project_user_model_and_tag(
    database: Engine, tmp_path: Path
) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection)
        for number, (user, project, tags) in enumerate(
            [
                ("ann", "prj_1", {"team": "red", 'équipe "du" $.coût\\': "x"}),
                ("ann", None, {"team": "blue"}),
                (None, "prj_1", None),
            ]
        ):
            request = add_request(
                connection, f"req_{number}", end_user=user, project_id=project, tags=tags
            )
            HoldGate().admit(connection, request, expires_at_us=FAR_US)
            ended(connection, settler, summary(request_id=request.id, ended_at_us=STARTED_US))

    def by(division: Division, tag: str | None = None) -> dict[str | None, tuple[int, int]]:
        with snapshot(database) as connection:
            found = spending(connection, "ten_1", 0, FAR_US, division, tag=tag)
        return {each.name: (each.requests, each.charged_nano) for each in found}

    one = 6_000
    assert by(Division.END_USER) == {"ann": (2, 2 * one), None: (1, one)}
    assert by(Division.PROJECT) == {"prj_1": (2, 2 * one), None: (1, one)}
    assert by(Division.KEY) == {"key_1": (3, 3 * one)}
    assert by(Division.MODEL) == {"tiny": (3, 3 * one)}
    assert by(Division.TAG, "team") == {"red": (1, one), "blue": (1, one), None: (1, one)}
    assert by(Division.TAG, 'équipe "du" $.coût\\') == {"x": (1, one), None: (2, 2 * one)}
    with snapshot(database) as connection:
        assert spending(connection, "ten_1", STARTED_US + 1, FAR_US, Division.KEY) == []


@pytest.fixture
def client(sqlite_database: Engine, house: House, desk: Desk) -> Iterator[Client]:
    handlers = (read_spending, refund_charge, read_receipt)
    with make_client(sqlite_database, *handlers, signer=desk.signer) as opened:
        yield opened


def test_a_tag_is_asked_for_by_its_name_and_only_then(client: Client, house: House) -> None:
    finance = bearer(house.finance)
    shown = client.get("/spending?by=key", headers=finance).json()["items"]
    assert [each["requests"] for each in shown] == [3]
    for tag in ("team", "équipe", "cost centre"):
        query = f"/spending?by=tag&tag={tag}"
        assert client.get(query, headers=finance).status_code == 200
    twice = client.get("/spending?by=key&by=model", headers=finance)
    assert (twice.status_code, twice.json()["parameter"]) == (400, "by")
    for query in ("by=tag", "by=key&tag=team", "by=colour", "by=tag&tag="):
        assert client.get(f"/spending?{query}", headers=finance).status_code == 400


def test_a_refund_is_signed_and_counts_once_per_reference(client: Client, house: House) -> None:
    operator = bearer(house.operator)
    path = "/generations/req_1/refund"
    body = {"reference": "ticket-7", "reason": "counted twice"}
    assert client.post(path, headers=bearer(house.owner), json=body).status_code == 403
    first = client.post(path, headers=operator, json=body)
    assert first.status_code == 200, first.text
    assert first.json()["refunded"] != "0"
    assert client.post(path, headers=operator, json=body).json()["refunded"] == "0"
    other = client.post(path, headers=operator, json=body | {"reference": "ticket-8"})
    assert (other.status_code, other.json()["code"]) == (409, "nothing_to_reverse")
    missing = client.post("/generations/req_9/refund", headers=operator, json=body)
    assert missing.status_code == 404
    receipt = client.get("/receipts/req_1", headers=bearer(house.finance)).json()
    (adjustment,) = receipt["adjustments"]
    assert adjustment["adjustment"]["note"] == "counted twice"
    assert adjustment["adjustment"]["amount"] == "-" + first.json()["refunded"]


def test_the_terminal_refunds_and_erases_too(
    sqlite_url: str, house: House, tmp_path: Path, held_clock: HeldClock
) -> None:
    context = CliContext(home=tmp_path, database_url=sqlite_url)

    def run(name: str, *arguments: str) -> dict[str, object]:
        result = CliRunner().invoke(load(name), [*arguments, "--json"], obj=context)
        assert result.exception is None, result.output
        return dict(json.loads(result.stdout.splitlines()[-1]))

    refund = ("req_2", "--amount", "0.000001", "--reference", "r", "--reason", "x")
    assert run("refund", *refund)["refunded"] == "0.000001"
    assert run("retention", "keep", house.tenant_id, "--days", "3")["content_days"] == 3
    assert run("retention", "erase", house.tenant_id, "--request", "req_1")["requests"] == 1
    shown = run("usage", "show", house.tenant_id, "--width", "day")
    assert [row["requests"] for row in shown["items"]] == [2, 1]
    rebuilt = CliRunner().invoke(load("usage"), ["rebuild"], obj=context)
    assert "rollups made anew: " in rebuilt.output
