"""`POST /events`: who may report, in which envelope, and what each event is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from api_app import make_client
from api_cases import HeldClock, House, bearer, make_house
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import metering_keys, projects
from api.ingestion.routes import BATCH, EVENTS_MAX, SINGLE, report_usage
from metering.database import transaction

Client = TestClient[Litestar]


@pytest.fixture
def house(sqlite_database: Engine, held_clock: HeldClock) -> House:
    return make_house(sqlite_database)


@pytest.fixture
def client(sqlite_database: Engine) -> Iterator[Client]:
    with make_client(sqlite_database, report_usage) as opened:
        yield opened


@pytest.fixture
def secret(sqlite_database: Engine, house: House) -> str:
    with transaction(sqlite_database) as connection:
        _, secret = metering_keys.create(
            connection, name="vllm", source="vllm/eu", tenant_ids=[house.tenant_id]
        )
    return secret


def event(house: House, number: int) -> dict[str, object]:
    return {
        "specversion": "1.0",
        "id": f"event-{number}",
        "source": "vllm/eu",
        "type": "dev.dflash.usage.reported.v1",
        "subject": house.tenant_id,
        "time": "2026-11-30T12:00:00Z",
        "data": {"model": "other", "input_tokens": 1, "output_tokens": 2},
    }


def send(client: Client, secret: str, body: object, kind: str = BATCH) -> tuple[int, dict]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(
        "/events", content=content, headers=bearer(secret) | {"content-type": kind}
    )
    return answer.status_code, answer.json()


def test_usage_counts_for_a_project_of_its_tenant_and_no_other(
    sqlite_database: Engine, client: Client, house: House, secret: str
) -> None:
    """An archived one, too: its usage may come late."""
    other = make_house(sqlite_database)
    with transaction(sqlite_database) as connection:
        ours, theirs = (
            projects.create(connection, owner.tenant_id, "green").id for owner in (house, other)
        )
        projects.archive(connection, house.tenant_id, ours)
    batch = []
    for number, project_id in enumerate([ours, theirs, "prj_unknown", None]):
        sent = event(house, number)
        batch.append(sent | {"data": {**sent["data"], "project_id": project_id}})
    answers = send(client, secret, batch)[1]["items"]
    assert [each["result"] for each in answers] == ["accepted", "rejected", "rejected", "accepted"]
    assert answers[1]["reason"] == answers[2]["reason"] == "this tenant has no such project"


def test_one_event_or_many_are_answered_one_by_one(
    client: Client, house: House, secret: str
) -> None:
    status, answer = send(client, secret, event(house, 1), SINGLE)
    assert (status, answer["items"]) == (200, [{"id": "event-1", "result": "accepted"}])
    changed = event(house, 1) | {"time": "2026-11-30T12:00:01Z"}
    stranger = event(house, 3) | {"subject": "ten_other"}
    batch = [event(house, 1), changed, event(house, 2), stranger, 7]
    status, answer = send(client, secret, batch)
    assert [each["result"] for each in answer["items"]] == [
        "duplicate",
        "conflict",
        "accepted",
        "rejected",
        "rejected",
    ]
    assert answer["counts"] == {"duplicate": 1, "conflict": 1, "accepted": 1, "rejected": 2}
    assert "tenant" in answer["items"][3]["reason"]


def test_only_a_living_metering_key_reports(
    client: Client, house: House, secret: str, sqlite_database: Engine
) -> None:
    for key, code in ((house.operator, "invalid_key"), ("nonsense", "invalid_key")):
        status, answer = send(client, key, [])
        assert (status, answer["code"]) == (401, code)
    with transaction(sqlite_database) as connection:
        (key,) = metering_keys.listing(connection)
        metering_keys.revoke(connection, key.id)
    assert send(client, secret, [])[1]["code"] == "revoked_key"


@pytest.mark.parametrize(
    ("body", "kind"), [(b"{", BATCH), ({}, BATCH), ([], "text/plain"), ([1] * 1001, BATCH)]
)
def test_what_is_no_batch_is_refused_whole(
    client: Client, secret: str, body: object, kind: str
) -> None:
    assert EVENTS_MAX == 1000
    status, answer = send(client, secret, body, kind)
    assert (status, answer["code"]) == (400, "invalid_body")


@pytest.mark.parametrize("kind", [SINGLE, BATCH])
def test_nesting_without_end_is_refused(client: Client, secret: str, kind: str) -> None:
    deep = b'{"id": "event-1", "extension": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    status, answer = send(client, secret, deep if kind == SINGLE else b"[%b]" % deep, kind)
    if kind == SINGLE:
        assert (status, answer["counts"]) == (200, {"rejected": 1})
    else:
        assert (status, answer["code"]) == (400, "invalid_body")
