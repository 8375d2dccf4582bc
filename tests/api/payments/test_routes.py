"""Buying credit over HTTP, from enrolment to the webhook that grants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_app import make_client
from api_cases import House, bearer, make_house
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine
from stripe_process import StripeProcess, running

from api import audit
from api.payments.cashier import Cashier
from api.payments.routes import payment_desk_router, stripe_webhook, top_ups_router
from billing.ledger.balances import balance
from billing.money import NANO
from billing.payments import outbox
from metering.database import snapshot

Client = TestClient[Litestar]


@pytest.fixture
def house(sqlite_database: Engine) -> House:
    return make_house(sqlite_database)


@pytest.fixture
def stripe(tmp_path: Path) -> Iterator[StripeProcess]:
    with running(tmp_path) as process:
        yield process


def client_of(database: Engine, cashier: Cashier) -> Client:
    handlers = (top_ups_router, payment_desk_router, stripe_webhook)
    return make_client(database, *handlers, cashier=cashier)


def test_a_tenant_buys_credit_and_gets_a_part_of_it_back(
    sqlite_database: Engine, house: House, stripe: StripeProcess
) -> None:
    cashier = Cashier(sqlite_database, stripe.provider, "https://gateway.example", 1000)
    with client_of(sqlite_database, cashier) as client:
        owner, operator = bearer(house.owner), bearer(house.operator)
        order = {"amount": "25.00", "reference": "order-1"}
        assert client.post("/top-ups", headers=owner, json=order).status_code == 409
        enrolment = {"tenant_id": house.tenant_id, "email": "pay@acme.example"}
        for expected in (True, False):
            answer = client.post("/admin/payments/enrol", headers=operator, json=enrolment)
            assert answer.json()["enrolled"] is expected
        bought = client.post("/top-ups", headers=owner, json=order)
        assert bought.status_code == 201, bought.text
        assert bought.json()["url"].startswith("https://checkout.example/")
        assert client.post("/top-ups", headers=owner, json=order).json() == bought.json()
        stripe.act("complete", session=stripe.one("checkout.session")["id"])
        for payload, signature in stripe.events():
            headers = {"stripe-signature": signature, "content-type": "application/json"}
            for _ in range(2):
                taken = client.post("/webhooks/stripe", content=payload, headers=headers)
                assert taken.status_code == 200, taken.text
            forged = {**headers, "stripe-signature": signature[:-2] + "00"}
            refused = client.post("/webhooks/stripe", content=payload + b" ", headers=forged)
            assert refused.status_code == 400
        with snapshot(sqlite_database) as connection:
            assert balance(connection, house.tenant_id).available_nano == 25 * NANO
        top_up = bought.json()["id"]
        refund = {"amount": "5.00", "reference": "ticket-1"}
        path = f"/admin/payments/top-ups/{top_up}/refund"
        assert client.post(path, headers=owner, json=refund).status_code == 403
        for _ in range(2):
            assert client.post(path, headers=operator, json=refund).status_code == 200
        with snapshot(sqlite_database) as connection:
            told = [each.action for each in audit.entries(connection, limit=9)]
        assert told == ["top_up.refunded", "payments.enrolled"]
        outbox.push(sqlite_database, stripe.provider)
        assert stripe.one("refund")["amount"] == 500
        listed = client.get("/top-ups", headers=bearer(house.finance)).json()["items"]
        assert [(item["state"], item["amount"]) for item in listed] == [("paid", "25.00")]
        with snapshot(sqlite_database) as connection:
            assert balance(connection, house.tenant_id).available_nano == 20 * NANO
        recharge = client.put(
            "/top-ups/recharge", headers=owner, json={"below": "10", "amount": "50.00"}
        )
        assert recharge.json() == {"below": "10", "amount": "50.00", "failed": False}


def test_without_a_provider_nobody_buys_anything(sqlite_database: Engine, house: House) -> None:
    cashier = Cashier(sqlite_database, None, "https://gateway.example", 1000)
    cashier.start()
    cashier.close()
    with client_of(sqlite_database, cashier) as client:
        order = {"amount": "25.00", "reference": "order-1"}
        answer = client.post("/top-ups", headers=bearer(house.owner), json=order)
        assert (answer.status_code, answer.json()["code"]) == (409, "payments_disabled")
        assert client.post("/webhooks/stripe", content=b"{}").status_code == 409
