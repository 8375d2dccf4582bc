from __future__ import annotations

from typing import Any

import httpx
import pytest
from api_cases import HeldClock, House, bearer
from api_settled import OUTPUT, PROMPT, Desk
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import audit, keys
from api.roles import Role
from billing import receipts
from billing.ledger import balances
from metering.database import snapshot, transaction

Client = TestClient[Litestar]


@pytest.fixture
def colleague(sqlite_database: Engine, house: House) -> str:
    """Another reviewer's key."""
    with transaction(sqlite_database) as connection:
        return keys.create(connection, tenant_id=None, role=Role.REVIEWER, name="c").secret


def listed(client: Client, house: House, **query: Any) -> list[str]:
    page = client.get("/review", headers=bearer(house.reviewer), params=query).json()
    return [item["id"] for item in page["items"]]


def claim(client: Client, secret: str, item_id: str = "rev_req_1") -> httpx.Response:
    return client.post(f"/review/{item_id}/claim", headers=bearer(secret))


def resolve(client: Client, secret: str, token: int, **body: Any) -> httpx.Response:
    return client.post(
        "/review/rev_req_1/resolve",
        headers=bearer(secret),
        json={"token": token, "verdict": "approve", **body},
    )


def test_the_queue_is_listed_oldest_first_without_texts(client: Client, house: House) -> None:
    answer = client.get("/review", headers=bearer(house.reviewer))
    assert answer.status_code == 200, answer.text
    items = answer.json()["items"]
    assert [item["id"] for item in items] == ["rev_req_1", "rev_req_2"]
    assert items[0]["reason"] == "request_confidence"
    assert float(items[0]["fee"]) > 0
    assert OUTPUT.strip() not in answer.text


def test_pages_of_the_queue_follow_one_another(client: Client, house: House) -> None:
    reviewer = bearer(house.reviewer)
    first = client.get("/review", headers=reviewer, params={"limit": 1}).json()
    second = client.get("/review", headers=reviewer, params={"cursor": first["next_cursor"]}).json()
    assert [item["id"] for item in first["items"] + second["items"]] == ["rev_req_1", "rev_req_2"]
    assert second["next_cursor"] is None
    misused = {"cursor": first["next_cursor"], "state": "claimed"}
    assert client.get("/review", headers=reviewer, params=misused).status_code == 400
    unknown = client.get("/review", headers=reviewer, params={"state": "open"})
    assert (unknown.status_code, unknown.json()["parameter"]) == (400, "state")


def test_an_item_shows_what_was_asked_and_answered(client: Client, house: House) -> None:
    detail = client.get("/review/rev_req_1", headers=bearer(house.reviewer)).json()
    assert detail["prompt"] == PROMPT
    assert detail["output"] == OUTPUT
    assert detail["item"]["request_id"] == "req_1"


def test_a_claimed_item_leaves_the_queue_and_nobody_else_gets_it(
    client: Client, house: House, colleague: str
) -> None:
    claimed = claim(client, house.reviewer)
    assert claimed.status_code == 200
    assert claimed.json()["token"] == 1
    assert claimed.json()["item"]["claimed_by"] == house.key_ids[Role.REVIEWER]
    assert listed(client, house) == ["rev_req_2"]
    assert listed(client, house, state="claimed") == ["rev_req_1"]
    refused = claim(client, colleague)
    assert (refused.status_code, refused.json()["code"]) == (409, "review_conflict")


def test_a_lease_that_ran_out_goes_to_the_next_and_its_token_is_dead(
    client: Client, house: House, colleague: str, held_clock: HeldClock
) -> None:
    stale = claim(client, house.reviewer).json()["token"]
    held_clock.advance(3600)
    fresh = claim(client, colleague).json()["token"]
    assert fresh > stale
    assert resolve(client, house.reviewer, stale).status_code == 409
    assert resolve(client, colleague, fresh).status_code == 200


def test_an_approval_signs_an_adjustment_and_repeating_it_changes_nothing(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    token = claim(client, house.reviewer).json()["token"]
    first = resolve(client, house.reviewer, token, note="fine")
    assert first.status_code == 200
    assert first.json()["verdict"] == "approve"
    assert resolve(client, house.reviewer, token, note="fine").json() == first.json()
    with snapshot(sqlite_database) as connection:
        [adjustment] = receipts.adjustments(connection, "req_1")
        lines = audit.entries(connection, limit=10)
    assert adjustment["adjustment"]["reason"] == "review_approved"
    assert [line.action for line in lines] == ["review.resolved", "review.claimed"]
    assert listed(client, house, state="resolved") == ["rev_req_1"]


def test_a_rejection_gives_the_output_back(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    def available() -> int:
        with snapshot(sqlite_database) as connection:
            return balances.balance(connection, house.tenant_id).available_nano

    before = available()
    token = claim(client, house.reviewer).json()["token"]
    answer = resolve(client, house.reviewer, token, verdict="reject", reasons=["unsafe"])
    assert answer.status_code == 200
    assert available() > before


def test_an_edit_keeps_the_corrected_text(client: Client, house: House) -> None:
    token = claim(client, house.reviewer).json()["token"]
    edited = {"verdict": "edit", "edited_output": "return a + b", "reasons": ["format"]}
    assert resolve(client, house.reviewer, token, **edited).status_code == 200
    detail = client.get("/review/rev_req_1", headers=bearer(house.reviewer)).json()
    assert detail["edited_output"] == "return a + b"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"verdict": "edit"}, 422, "invalid_verdict"),
        ({"verdict": "approve", "edited_output": "x"}, 422, "invalid_verdict"),
        ({"verdict": "edit", "edited_output": "\0", "reasons": ["format"]}, 422, "invalid_verdict"),
        ({"verdict": "reject", "note": "a\x00b"}, 400, "invalid_body"),
        ({"verdict": "maybe"}, 400, "invalid_body"),
        ({"token": "1"}, 400, "invalid_body"),
        ({"token": 7}, 409, "review_conflict"),
    ],
)
def test_a_verdict_that_does_not_hold_is_refused(
    client: Client, house: House, body: dict[str, Any], status: int, code: str
) -> None:
    token = claim(client, house.reviewer).json()["token"]
    answer = resolve(client, house.reviewer, **{"token": token, **body})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert listed(client, house, state="claimed") == ["rev_req_1"]


def test_an_unknown_item_is_not_found(client: Client, house: House) -> None:
    reviewer = bearer(house.reviewer)
    for answer in (
        client.get("/review/rev_nobody", headers=reviewer),
        claim(client, house.reviewer, "rev_nobody"),
        client.post(
            "/review/rev_nobody/resolve",
            headers=reviewer,
            json={"token": 1, "verdict": "approve"},
        ),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("role", ["owner", "finance", "developer"])
def test_tenants_do_not_review(client: Client, house: House, role: str) -> None:
    headers = bearer(getattr(house, role))
    assert client.get("/review", headers=headers).status_code == 403
    assert client.get("/review/rev_req_1", headers=headers).status_code == 403
    assert claim(client, getattr(house, role)).status_code == 403


def test_operators_review_too(client: Client, house: House, desk: Desk) -> None:
    token = claim(client, house.operator).json()["token"]
    assert resolve(client, house.operator, token).status_code == 200
