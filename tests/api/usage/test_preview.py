from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from api_app import make_client
from api_cases import House, bearer, make_house
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine, update
from unguarded import unguard

from api.usage import tariff_routes
from billing import tariffs
from metering.database import transaction
from metering.tables import request_summaries

Client = TestClient[Litestar]
COMPOSITE = tariffs.document(tariffs.shipped()["composite"])
MONTH = "2026-12"


@pytest.fixture
def client(sqlite_database: Engine, house: House) -> Iterator[Client]:
    handlers = (tariff_routes.read_tariff, tariff_routes.preview_tariff)
    with make_client(sqlite_database, *handlers) as opened:
        yield opened


def ask(client: Client, key: str, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = client.post("/tariffs/preview", headers=bearer(key), json={"period": MONTH, **body})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def test_a_tenant_reads_its_tariff_and_what_the_month_would_cost_under_it(
    client: Client, house: House
) -> None:
    mine = client.get("/tariff", headers=bearer(house.finance)).json()
    assert (mine["id"], mine["document"]) == ("composite@1", COMPOSITE)
    for body in ({"version": mine["id"]}, {"document": mine["document"]}):
        found = ask(client, house.finance, **body)
        assert found["requests"] == 3
        assert found["lines"] == found["booked"] != []
        assert (found["total"], found["difference"]) == (found["booked_total"], "0")
    assert Decimal(found["total"]) == sum(Decimal(line["amount"]) for line in found["lines"])


def test_a_draft_is_priced_without_being_published(client: Client, house: House) -> None:
    draft = COMPOSITE | {"name": "draft", "input": {"per_million": "1000"}}
    found = ask(client, house.owner, document=draft)
    assert found["tariff"] == "draft"
    assert Decimal(found["difference"]) == Decimal(found["total"]) - Decimal(found["booked_total"])
    assert Decimal(found["difference"]) > 0
    assert client.get("/tariff", headers=bearer(house.owner)).json()["id"] == "composite@1"


def test_what_cannot_be_priced_is_refused(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    assert ask(client, house.owner, 422, document={"name": "x"})["code"] == "invalid_tariff"
    assert ask(client, house.owner, 400)["parameter"] == "document"
    assert ask(client, house.owner, 404, version="token@1")["code"] == "not_found"
    assert ask(client, house.reviewer, 403, version="token@1")["code"] == "forbidden"
    euros = COMPOSITE | {"currency": "EUR"}
    assert ask(client, house.owner, 409, document=euros)["code"] == "tariff_conflict"
    stranger = make_house(sqlite_database, "Umbrella")
    path = f"/tariffs/preview?tenant_id={house.tenant_id}"
    body = {"period": MONTH, "document": COMPOSITE}
    assert client.post(path, headers=bearer(stranger.owner), json=body).status_code == 404
    by_operator = {"period": MONTH, "version": "token@1"}
    answer = client.post(path, headers=bearer(house.operator), json=by_operator)
    assert answer.json()["tariff"] == "token"
    with transaction(sqlite_database) as connection:
        unguard(connection, "request_summaries")
        connection.execute(update(request_summaries).values(body=""))
    assert ask(client, house.owner, 409, document=COMPOSITE)["code"] == "usage_gone"
