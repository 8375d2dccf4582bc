"""Sign-in, sessions that die with their key, and forms that only their own page can send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_pages import World
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api.roles import Role
from dashboards import sessions
from metering import clock

Client = TestClient[Litestar]


@pytest.fixture
def world(sqlite_database: Engine, tmp_path: Path) -> World:
    return World(sqlite_database, tmp_path)


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    with TestClient(world.app(), raise_server_exceptions=False) as opened:
        opened.follow_redirects = False
        yield opened


def token_of(page: str) -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def sign_in(client: Client, key: str) -> str:
    """Sign in as a browser does; where it leads."""
    token = token_of(client.get("/dashboard/sign-in").text)
    answer = client.post("/dashboard/sign-in", data={"key": key, "csrf_token": token})
    return str(answer.headers["location"])


@pytest.mark.parametrize(
    ("role", "first_page"),
    [
        ("owner", "/dashboard/overview"),
        ("finance", "/dashboard/overview"),
        ("developer", "/dashboard/overview"),
        ("operator", "/dashboard/engine"),
        ("reviewer", "/dashboard/reviews"),
    ],
)
def test_each_role_lands_on_its_own_first_page(
    world: World, client: Client, role: str, first_page: str
) -> None:
    assert sign_in(client, getattr(world.house, role)) == first_page
    assert client.get(first_page).status_code == 200


def test_a_wrong_key_is_told_no_more_than_that_it_is_not_valid(
    world: World, client: Client
) -> None:
    mistyped = world.house.owner[:-1] + ("1" if world.house.owner.endswith("0") else "0")
    for key in ("", "nonsense", "x" * 500, mistyped):
        assert sign_in(client, key) == "/dashboard/sign-in"
        assert "not valid here" in client.get("/dashboard/sign-in").text
    assert client.get("/dashboard/overview").headers["location"] == "/dashboard/sign-in"


def test_the_page_asked_for_comes_after_the_door(world: World, client: Client) -> None:
    answer = client.get("/dashboard/receipts?from=2026-01-01&to=2026-01-02")
    assert answer.headers["location"] == "/dashboard/sign-in"
    landed = sign_in(client, world.house.finance)
    assert landed == "/dashboard/receipts?from=2026-01-01&to=2026-01-02"


def test_the_session_cookie_is_strict_hidden_from_scripts_and_holds_no_secret(
    world: World, client: Client
) -> None:
    token = token_of(client.get("/dashboard/sign-in").text)
    answer = client.post("/dashboard/sign-in", data={"key": world.house.owner, "csrf_token": token})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("dflash_session=")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/dashboard" in cookie
    assert world.house.owner not in cookie


def test_a_session_ends_with_its_key(world: World, client: Client) -> None:
    sign_in(client, world.house.owner)
    assert client.get("/dashboard/overview").status_code == 200
    world.revoke(world.house.key_ids[Role.OWNER])
    assert client.get("/dashboard/overview").headers["location"] == "/dashboard/sign-in"


def test_a_session_ends_after_twelve_hours(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(client, world.house.owner)
    later = clock.now_us() + (sessions.SESSION_LIFETIME_S + 1) * 1_000_000
    monkeypatch.setattr(clock, "now_us", lambda: later)
    assert client.get("/dashboard/overview").headers["location"] == "/dashboard/sign-in"


def test_signing_out_forgets_the_session(world: World, client: Client) -> None:
    sign_in(client, world.house.owner)
    token = token_of(client.get("/dashboard/overview").text)
    client.post("/dashboard/sign-out", data={"csrf_token": token})
    assert client.get("/dashboard/overview").headers["location"] == "/dashboard/sign-in"


@pytest.mark.parametrize("sent", [{}, {"csrf_token": "guess"}, {"csrf_token": ""}])
@pytest.mark.parametrize(
    "path", ["/sign-in", "/sign-out", "/reviews/rev_x/claim", "/reviews/rev_x/verdict"]
)
def test_a_form_without_the_sessions_token_changes_nothing(
    world: World, client: Client, path: str, sent: dict[str, str]
) -> None:
    sign_in(client, world.house.operator)
    answer = client.post(f"/dashboard{path}", data=sent)
    assert answer.status_code == 403
    assert "This form has expired" in answer.text
    assert client.get("/dashboard/engine").status_code == 200


def test_a_token_of_before_the_sign_in_is_worth_nothing_after_it(
    world: World, client: Client
) -> None:
    before = token_of(client.get("/dashboard/sign-in").text)
    sign_in(client, world.house.owner)
    assert client.post("/dashboard/sign-out", data={"csrf_token": before}).status_code == 403


@pytest.mark.parametrize(
    "forged",
    [
        "null",
        "AAAA",
        "=",
        "%00",
        "YWRkaXRpb25hbF9hdXRoZW50aWNhdGVkX2RhdGE9e30=",
        "YWRkaXRpb25hbF9hdXRoZW50aWNhdGVkX2RhdGE9W10=",
        "YWRkaXRpb25hbF9hdXRoZW50aWNhdGVkX2RhdGE9e3siZXhwaXJlc19hdCI6OTk5OTk5OTk5OTl9",
    ],
)
def test_a_forged_cookie_is_no_session(client: Client, forged: str) -> None:
    answer = client.get("/dashboard/overview", headers={"cookie": f"dflash_session={forged}"})
    assert answer.headers["location"] == "/dashboard/sign-in"


def test_a_session_secret_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        sessions.session_middleware(b"short", path="/", secure=False)


@pytest.mark.parametrize(
    ("role", "closed"),
    [
        ("owner", ["/engine", "/reviews", "/reviews/x", "/calibrations", "/unrated"]),
        ("developer", ["/engine", "/reviews", "/reconciliation", "/unrated"]),
        ("finance", ["/engine", "/reviews", "/reconciliation", "/unrated"]),
        (
            "reviewer",
            [
                "/engine",
                "/economics",
                "/reviewers",
                "/calibrations",
                "/reconciliation",
                "/unrated",
                "/overview",
                "/receipts",
                "/statement",
                "/invoices",
            ],
        ),
        ("operator", ["/overview", "/receipts", "/statement", "/invoices"]),
    ],
)
def test_pages_are_closed_to_roles_that_do_not_reach_them(
    world: World, client: Client, role: str, closed: list[str]
) -> None:
    sign_in(client, getattr(world.house, role))
    for path in closed:
        answer = client.get(f"/dashboard{path}")
        assert answer.status_code == 403, path
        assert "Not allowed" in answer.text


@pytest.mark.parametrize("path", ["/dashboard/nothing", "/dashboard/receipts/x/y/z"])
def test_an_unknown_address_gets_a_page_that_says_so(
    world: World, client: Client, path: str
) -> None:
    sign_in(client, world.house.owner)
    answer = client.get(path)
    assert answer.status_code == 404
    assert "There is no page at this address" in answer.text


def test_an_unexpected_error_is_told_from_its_page_and_nothing_more(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(client, world.house.operator)

    def broken() -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(World, "stats", property(lambda _: broken()), raising=False)
    answer = client.get("/dashboard/engine")
    assert answer.status_code == 500
    assert "Something went wrong" in answer.text
    assert "a secret detail" not in answer.text


@pytest.mark.parametrize(
    "path", ["/sign-in", "/overview", "/nothing", "/static/style.css", "/static/nothing.css"]
)
def test_every_answer_carries_the_security_headers(world: World, client: Client, path: str) -> None:
    headers = client.get(f"/dashboard{path}").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    cached = headers["cache-control"]
    assert ("immutable" in cached) if path == "/static/style.css" else cached == "no-store"
