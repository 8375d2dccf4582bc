"""Errors as they arrive: over HTTP, in the shape of the address that was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import pytest
from api_app import make_client
from litestar import Litestar, Request, Router, get, post
from litestar.exceptions import InternalServerException
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.testing import TestClient
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from api import error_reports
from api import errors as api_errors
from api.bodies import StrictBody
from api.error_reports import ProblemView
from api.reference import problems_router
from api.schemas import Instant, LimitQuery, Name, PathId
from billing import errors as billing_errors
from engine import errors as engine_errors

SECRET = "postgresql://gateway:hunter2@db/ledger"


class Order(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    at: Instant | None = None


RAISED: dict[str, Exception] = {
    "credit": billing_errors.InsufficientCredit(2 * 10**9, 10**8, "USD"),
    "overdue": billing_errors.PaymentOverdue(2 * 10**9, 0, "USD"),
    "ceiling": billing_errors.CostCeilingTooLow(10**9, 5 * 10**8, "EUR"),
    "rate": api_errors.RateLimited(60, 7),
    "missing": api_errors.MissingKey("send a key"),
    "expired": api_errors.ExpiredKey("this key has expired"),
    "role": api_errors.Forbidden("not for reviewers", "generate"),
    "suspended": api_errors.TenantSuspended("suspended"),
    "elsewhere": api_errors.NotFound("no generation req_1"),
    "conflict": billing_errors.ReviewConflict("claimed by another"),
    "mismatch": api_errors.IdempotencyMismatch("another body"),
    "flight": api_errors.RequestInFlight("still running"),
    "tariff": billing_errors.InvalidTariff(["input: not an object", "name: missing"]),
    "option": engine_errors.InvalidRequest("n is not supported", "n"),
    "long": engine_errors.PromptTooLong("9 tokens too many", "prompt"),
    "model": engine_errors.ModelNotFound("model 'x' is not served here"),
    "queue": engine_errors.EngineOverloaded("32 requests are waiting"),
    "engine": engine_errors.EngineUnavailable(SECRET),
    "file": engine_errors.InvalidModelFile(SECRET),
    "config": engine_errors.InvalidConfig(SECRET),
    "overdraft": billing_errors.Overdraft(SECRET, 2, 1),
    "database": OperationalError("SELECT 1", {}, Exception(SECRET)),
    "bug": ZeroDivisionError(SECRET),
    "settled": api_errors.NotSettled("req_1"),
    "generation": api_errors.GenerationFailed("req_1", "it was lost"),
}


@get("/raise/{name:str}", sync_to_thread=False)
def raise_it(name: FromPath[str]) -> None:
    raise RAISED[name]


@post("/orders", sync_to_thread=False)
def order(data: JSONBody[Order]) -> None:
    return None


@get("/things/{thing_id:str}", sync_to_thread=False)
def things(thing_id: PathId, limit: LimitQuery = 5, ratio: FromQuery[float] = 1.0) -> None:
    return None


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient[Litestar]]:
    database: Any = Engine.__new__(Engine)  # none of these routes reads it
    handlers = [raise_it, order, things]
    routers = [
        Router(path, route_handlers=handlers, dto=StrictBody, return_dto=None)
        for path in ("/", "/v1")
    ]
    with make_client(database, *routers, problems_router) as opened:
        yield opened


def problem(client: TestClient[Litestar], name: str) -> tuple[int, dict[str, Any], Any]:
    answer = client.get(f"/raise/{name}")
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert msgspec.convert(body, ProblemView)
    return answer.status_code, body, answer.headers


def test_exhausted_credit_is_a_402_that_says_how_much_is_missing(
    client: TestClient[Litestar],
) -> None:
    status, body, _ = problem(client, "credit")
    assert status == 402
    assert body["code"] == "insufficient_credit"
    assert (body["needed"], body["available"], body["currency"]) == ("2", "0.1", "USD")
    assert "nano" not in body["detail"]


def test_a_rate_limit_is_a_429_that_says_when_to_come_back(client: TestClient[Litestar]) -> None:
    status, body, headers = problem(client, "rate")
    assert status == 429
    assert body["retry_after_s"] == 7
    assert headers["retry-after"] == "7"
    assert headers["ratelimit-policy"] == '"requests";q=60;w=60'
    assert headers["ratelimit"] == '"requests";r=0;t=7'


@pytest.mark.parametrize(
    ("name", "status", "code", "parameter"),
    [
        ("ceiling", 400, "cost_ceiling_too_low", "max_cost"),
        ("missing", 401, "missing_key", None),
        ("expired", 401, "expired_key", None),
        ("role", 403, "forbidden", None),
        ("suspended", 403, "tenant_suspended", None),
        ("elsewhere", 404, "not_found", None),
        ("model", 404, "model_not_found", "model"),
        ("conflict", 409, "review_conflict", None),
        ("flight", 409, "request_in_flight", None),
        ("mismatch", 422, "idempotency_mismatch", None),
        ("tariff", 422, "invalid_tariff", None),
        ("option", 400, "invalid_request", "n"),
        ("long", 400, "context_length_exceeded", "prompt"),
        ("queue", 503, "overloaded", None),
        ("generation", 500, "generation_failed", None),
    ],
)
def test_an_expected_error_says_what_it_is_and_why(
    client: TestClient[Litestar], name: str, status: int, code: str, parameter: str | None
) -> None:
    with capture_logs() as logged:
        got_status, body, _ = problem(client, name)
    assert (got_status, body["code"], body.get("parameter")) == (status, code, parameter)
    assert body["type"] == f"/problems/{code}"
    assert body["detail"]
    assert logged == []
    kind = client.get(body["type"]).json()
    assert (kind["status"], kind["title"]) == (status, body["title"])


def test_an_error_that_lists_faults_lists_them(client: TestClient[Litestar]) -> None:
    assert problem(client, "tariff")[1]["errors"] == ["input: not an object", "name: missing"]


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("engine", 503, "engine_unavailable"),
        ("database", 503, "database_unavailable"),
        ("file", 500, "internal_error"),
        ("overdraft", 500, "internal_error"),
        ("bug", 500, "internal_error"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_our_own_faults_leak_nothing_but_an_id_that_the_log_has_too(
    client: TestClient[Litestar], name: str, status: int, code: str, prefix: str
) -> None:
    with capture_logs() as logged:
        answer = client.get(f"{prefix}/raise/{name}")
    assert answer.status_code == status
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
    [entry] = logged
    assert entry["event"] == "request.failed"
    assert entry["exc_info"] is RAISED[name]
    assert entry["error_id"] in answer.text
    assert code in answer.text


def test_authentication_problems_name_the_scheme(client: TestClient[Litestar]) -> None:
    assert problem(client, "missing")[2]["www-authenticate"] == 'Bearer realm="dflash"'
    assert "invalid_token" in problem(client, "expired")[2]["www-authenticate"]


@pytest.mark.parametrize(
    ("name", "status", "kind", "code", "parameter"),
    [
        ("missing", 401, "authentication_error", "missing_key", None),
        ("credit", 402, "insufficient_quota", "insufficient_credit", None),
        ("overdue", 402, "insufficient_quota", "payment_overdue", None),
        ("role", 403, "permission_error", "forbidden", None),
        ("rate", 429, "rate_limit_error", "rate_limited", None),
        ("long", 400, "invalid_request_error", "context_length_exceeded", "prompt"),
        ("model", 404, "invalid_request_error", "model_not_found", "model"),
        ("queue", 503, "server_error", "overloaded", None),
        ("bug", 500, "server_error", "internal_error", None),
    ],
)
def test_below_v1_errors_have_openais_shape(
    client: TestClient[Litestar],
    name: str,
    status: int,
    kind: str,
    code: str,
    parameter: str | None,
) -> None:
    answer = client.get(f"/v1/raise/{name}")
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["message"]
    assert (error["type"], error["code"], error["param"]) == (kind, code, parameter)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"name": "a", "count": 0}, "count"),
        ({"name": "a", "count": "2"}, "count"),
        ({"name": "a", "size": 2}, "size"),
        ({"name": ""}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"name": "line\nbreak"}, "name"),
        ({"name": "a", "at": "2026-12-01T00:00:00"}, "at"),
        ({"name": "a", "at": "tomorrow"}, "at"),
        ({"name": "a", "at": 5}, "at"),
        ({}, "name"),
        ([], None),
    ],
)
def test_a_body_of_another_shape_is_a_400_that_names_the_parameter(
    client: TestClient[Litestar], body: Any, parameter: str | None
) -> None:
    answer = client.post("/orders", json=body)
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid_body"
    assert answer.json().get("parameter") == parameter
    below_v1 = client.post("/v1/orders", json=body)
    assert below_v1.status_code == 400
    assert below_v1.json()["error"]["param"] == parameter


def test_a_body_that_is_missing_is_said_to_be(client: TestClient[Litestar]) -> None:
    answer = client.post("/orders", content=b"")
    assert answer.status_code == 400
    assert (answer.json()["parameter"], answer.json()["detail"]) == ("body", "this needs a body")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"name": NaN}', b"[" * 60_000])
def test_a_body_that_is_not_json_is_a_400(client: TestClient[Litestar], body: bytes) -> None:
    with capture_logs() as logged:
        answer = client.post("/orders", content=body)
    assert answer.status_code == 400
    assert answer.json()["code"] in {"invalid_body", "invalid_parameter"}
    assert logged == []


@pytest.mark.parametrize(
    ("address", "parameter"),
    [
        ("/things/a?limit=0", "limit"),
        ("/things/a?limit=201", "limit"),
        ("/things/a?limit=many", "limit"),
        ("/things/a?ratio=x", "ratio"),
        ("/things/a%00b", "thing_id"),
        ("/things/" + "a" * 65, "thing_id"),
        ("/things/%27%20OR%201", "thing_id"),
    ],
)
def test_a_bad_path_or_query_is_a_400_that_names_the_parameter(
    client: TestClient[Litestar], address: str, parameter: str
) -> None:
    answer = client.get(address)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == "invalid_parameter"
    assert answer.json()["parameter"] == parameter


def test_what_the_framework_refuses_has_the_same_shape(client: TestClient[Litestar]) -> None:
    for answer, status, code in (
        (client.get("/nowhere"), 404, "no_such_address"),
        (client.delete("/orders"), 405, "method_not_allowed"),
        (client.post("/orders", content=b"x" * (1 << 17)), 413, "too_large"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert answer.headers["content-type"] == "application/problem+json"
    assert client.get("/v1/nowhere").json()["error"]["code"] == "no_such_address"


def test_documentation_lists_the_kinds_a_route_answers_with() -> None:
    spec = error_reports.documented(api_errors.NotFound, api_errors.InvalidCursor)
    assert set(spec) == {400, 404}
    assert "invalid_cursor" in spec[400].description


def test_an_unknown_kind_of_problem_is_not_found(client: TestClient[Litestar]) -> None:
    assert client.get("/problems/nonsense").status_code == 404
    codes = [kind["code"] for kind in client.get("/problems").json()["items"]]
    assert codes == sorted(codes)
    assert "insufficient_credit" in codes


def test_a_client_that_leaves_before_its_body_is_read_is_no_fault_of_ours() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    handler = SimpleNamespace(resolve_request_max_body_size=lambda: None)
    scope: Any = {"type": "http", "headers": [], "state": {}, "route_handler": handler}
    with pytest.raises(InternalServerException) as left:
        asyncio.run(Request[Any, Any, Any](scope, receive).body())
    with capture_logs() as logged:
        said = error_reports.report(left.value)
    assert (said.problem.status, said.error_id, logged) == (499, None, [])
