"""Invoices over HTTP: who reads which, and what the operator's changes leave in the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from api_app import make_client
from api_cases import HeldClock, House, bearer, make_house
from api_settled import Desk
from billing_cases import unit
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import audit
from api.invoices.routes import invoice_desk_router, invoices_router
from api.roles import Role
from billing.invoices import parties
from metering.database import snapshot, transaction

Client = TestClient[Litestar]
CLOSE = {"period": "2026-12"}


@pytest.fixture
def house(sqlite_database: Engine, held_clock: HeldClock, tmp_path: Path) -> House:
    """A tenant that used something on the first of December and pays 19 % tax; it is January."""
    desk = Desk.open(sqlite_database, tmp_path)
    house = make_house(sqlite_database)
    desk.fund(house.tenant_id)
    held_clock.advance(3600)
    desk.settle(house.tenant_id, house.key_ids[Role.DEVELOPER], "req_1", unit(3_000_000))
    with transaction(sqlite_database) as connection:
        parties.set_customer(
            connection, house.tenant_id, parties.Customer("Acme", tax_percent=Decimal(100))
        )
    held_clock.advance(36 * 86_400)
    return house


@pytest.fixture
def client(sqlite_database: Engine, house: House) -> Iterator[Client]:
    with make_client(sqlite_database, invoices_router, invoice_desk_router) as opened:
        yield opened


def close(client: Client, house: House) -> str:
    answer = client.post(
        "/admin/invoices/close",
        headers=bearer(house.operator),
        json={"tenant_id": house.tenant_id, **CLOSE},
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["outcome"] == "issued"
    return str(answer.json()["invoice_id"])


def test_a_tenant_reads_its_invoice_in_every_form(client: Client, house: House) -> None:
    invoice_id = close(client, house)
    finance = bearer(house.finance)
    listed = client.get("/invoices", headers=finance).json()["items"]
    assert [item["id"] for item in listed] == [invoice_id]
    whole = client.get(f"/invoices/{invoice_id}", headers=finance).json()
    assert whole["schema"] == "dflash.invoice/1"
    assert whole["number"] == listed[0]["number"] == "INV-000001"
    assert whole["due"] == whole["tax"] == listed[0]["due"] != "0.00"
    assert client.get("/invoices/INV-000001", headers=finance).json() == whole
    page = client.get(f"/invoices/{invoice_id}/html", headers=finance)
    assert page.headers["content-type"].startswith("text/html")
    assert whole["number"] in page.text
    paper = client.get(f"/invoices/{invoice_id}/pdf", headers=finance)
    assert paper.content.startswith(b"%PDF-")
    assert paper.headers["content-disposition"] == 'attachment; filename="INV-000001.pdf"'


def test_another_tenants_invoice_is_not_found(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    invoice_id = close(client, house)
    stranger = bearer(make_house(sqlite_database, "Other").owner)
    for path in (invoice_id, f"{invoice_id}/pdf", f"{invoice_id}/html", "INV-000001"):
        assert client.get(f"/invoices/{path}", headers=stranger).status_code == 404
    assert client.get("/invoices", headers=stranger).json()["items"] == []


def test_a_preview_shows_the_running_month(client: Client, house: House) -> None:
    preview = client.get("/invoices/preview?period=2026-12", headers=bearer(house.owner)).json()
    assert (preview["state"], preview["number"]) == ("preview", None)
    assert preview["lines"]
    bad = client.get("/invoices/preview?period=2026-13", headers=bearer(house.owner))
    assert bad.status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/invoices/close", {"tenant_id": "ten_1", **CLOSE}),
        ("/admin/invoices/inv_1/void", None),
        ("/admin/invoices/inv_1/give-up", None),
        ("/admin/invoices/inv_1/credit", {"amount": "1", "reason": "r", "reference": "r"}),
        ("/admin/invoices/inv_1/payments", {"amount": "1", "reference": "r"}),
    ],
)
def test_only_the_operator_changes_invoices(
    client: Client, house: House, path: str, body: dict[str, str] | None
) -> None:
    for key in (house.owner, house.finance, house.reviewer):
        assert client.post(path, headers=bearer(key), json=body).status_code == 403
    assert client.post(path, headers=bearer(house.operator), json=body).status_code == 404


def test_changes_are_answered_with_the_invoice_and_written_down(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    invoice_id = close(client, house)
    operator, path = bearer(house.operator), f"/admin/invoices/{invoice_id}"
    due = client.get(f"/invoices/{invoice_id}", headers=operator).json()["due"]
    note = {"amount": "0.01", "reason": "goodwill", "reference": "ticket-1"}
    credited = client.post(f"{path}/credit", headers=operator, json=note).json()
    assert credited["credit_notes"][0]["number"] == "CN-000001"
    left = Decimal(due) - Decimal("0.01")
    assert Decimal(credited["remaining"]) == left
    payment = {"amount": str(left), "reference": "wire-1"}
    for _ in range(2):
        answer = client.post(f"{path}/payments", headers=operator, json=payment)
        assert answer.status_code == 200, answer.text
    paid = answer.json()
    assert (paid["state"], len(paid["payments"])) == ("paid", 1)
    refused = client.post(f"{path}/void", headers=operator)
    assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (
        409,
        "invoice_conflict",
    )
    finer = client.post(
        f"{path}/credit", headers=operator, json={**note, "amount": "0.001", "reference": "x"}
    )
    assert finer.status_code == 400
    with snapshot(sqlite_database) as connection:
        actions = [entry.action for entry in audit.entries(connection, limit=10)]
    assert actions == ["invoice.paid", "invoice.credited", "invoice.issued"]


def test_a_month_is_not_closed_before_its_end(
    client: Client, house: House, held_clock: HeldClock
) -> None:
    body = {"tenant_id": house.tenant_id, "period": "2027-01"}
    answer = client.post("/admin/invoices/close", headers=bearer(house.operator), json=body)
    assert answer.status_code == 400
    assert "not over yet" in answer.text
