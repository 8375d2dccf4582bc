"""Economics over HTTP: for the operator alone, and nothing but what was measured or given."""

from __future__ import annotations

from api_cases import House, bearer
from litestar import Litestar
from litestar.testing import TestClient

Client = TestClient[Litestar]
FLEET = {
    "gpus": "2",
    "gpu_hour": "1",
    "kw_per_gpu": "1",
    "people": "1",
    "iteration_days": "10",
}
QUESTION = {
    "before": FLEET,
    "after": FLEET | {"gpus": "1"},
    "person_year": "1000",
    "kwh": "1",
    "pue": "1",
    "one_off": "8760",
    "years": "1",
}


def test_an_installation_without_a_record_has_no_costs(client: Client, house: House) -> None:
    path = "/admin/economics?per_hour=2.50"
    found = client.get(path, headers=bearer(house.operator)).json()
    assert (found["per_hour"], found["per_kwh"], found["currency"]) == ("2.50", None, "USD")
    assert (found["fit"], found["usual"], found["costs"], found["margins"]) == (None, None, [], [])
    assert "on record are 0 at 0" in found["no_fit"]
    assert client.get(path, headers=bearer(house.owner)).status_code == 403


def test_rates_are_the_operators_to_give(client: Client, house: House) -> None:
    operator = bearer(house.operator)
    assert client.get("/admin/economics", headers=operator).status_code == 400
    answer = client.get("/admin/economics?per_hour=cheap", headers=operator)
    assert answer.json()["parameter"] == "per_hour"


def test_margins_are_of_a_month_when_one_is_asked_for(client: Client, house: House) -> None:
    path = "/admin/economics?per_hour=2.50&period="
    found = client.get(f"{path}2026-11", headers=bearer(house.operator))
    assert (found.json()["period"], found.json()["margins"]) == ("2026-11", [])
    wrong = client.get(f"{path}2026-13", headers=bearer(house.operator))
    assert (wrong.status_code, wrong.json()["parameter"]) == (400, "period")


def test_fleets_are_compared_by_the_figures_given(client: Client, house: House) -> None:
    operator = bearer(house.operator)
    found = client.post("/admin/economics/roi", headers=operator, json=QUESTION).json()
    assert (found["saving"], found["payback_months"], found["return_percent"]) == (
        "17520",
        "6",
        "100",
    )
    wrong = client.post("/admin/economics/roi", headers=operator, json=QUESTION | {"pue": 1.5})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_economics")
    assert wrong.json()["errors"] == [
        'pue: must be a quoted decimal such as "0.25", not the number 1.5'
    ]
