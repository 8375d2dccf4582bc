from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from api_cases import House, bearer
from litestar import Litestar
from litestar.testing import TestClient

Client = TestClient[Litestar]


def grant(client: Client, house: House, amount: object, reference: str = "first") -> httpx.Response:
    return client.post(
        f"/admin/tenants/{house.tenant_id}/credit",
        headers=bearer(house.operator),
        json={"amount": amount, "reference": reference},
    )


def test_credit_adds_up_and_a_reference_counts_once(client: Client, house: House) -> None:
    first = grant(client, house, "12.50")
    assert first.status_code == 201, first.text
    assert first.json() == {
        "tenant_id": house.tenant_id,
        "granted": "12.5",
        "available": "12.5",
        "held": "0",
        "currency": "USD",
    }
    again = grant(client, house, "12.50")
    assert (again.json()["granted"], again.json()["available"]) == ("0", "12.5")
    assert grant(client, house, "0.000000001", "second").json()["available"] == "12.500000001"
    log = client.get("/admin/audit", headers=bearer(house.operator)).json()["items"]
    assert [(line["action"], line["subject"]) for line in log] == [
        ("credit.granted", "second"),
        ("credit.granted", "first"),
    ]


def test_a_reference_with_another_amount_is_a_conflict(client: Client, house: House) -> None:
    grant(client, house, "1")
    answer = grant(client, house, "2")
    assert (answer.status_code, answer.json()["code"]) == (409, "transfer_conflict")


@pytest.mark.parametrize(
    "amount", ["0", "-1", "1e3", "1.0000000001", "NaN", "", 5, 1.5, None, "9" * 11]
)
def test_what_is_no_amount_grants_nothing(client: Client, house: House, amount: object) -> None:
    assert grant(client, house, amount).status_code == 400
    log = client.get("/admin/audit", headers=bearer(house.operator)).json()["items"]
    assert log == []


def test_credit_for_nobody_is_not_found(client: Client, house: House) -> None:
    answer = client.post(
        "/admin/tenants/ten_nobody/credit",
        headers=bearer(house.operator),
        json={"amount": "1", "reference": "r"},
    )
    assert answer.status_code == 404


def test_parallel_grants_of_one_reference_count_once(client: Client, house: House) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: grant(client, house, "3"), range(6)))
    assert sorted(answer.json()["granted"] for answer in answers) == ["0"] * 5 + ["3"]
    assert grant(client, house, "3").json()["available"] == "3"
