"""The whole application, not started: every address is guarded, described and wired."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from tiny_models import write_tiny_dfm

from api.app import create_app
from api.roles import Scope
from api.settings import Settings

PUBLIC = {
    "/",
    "/webhooks/stripe",  # which looks at signatures instead
    "/events",
    "/health",
    "/ready",
    "/metrics",
    "/receipt-keys",
    "/problems",
    "/problems/{code}",
}
ELSEWHERE = ("/docs", "/dashboard")  # open documentation; pages with a door of their own


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Litestar]:
    home: Path = tmp_path_factory.mktemp("home")
    model = write_tiny_dfm(home / "tiny.dfm")
    built = create_app(Settings(home=home, model=str(model)))
    yield built
    built.state.database.dispose()


def handlers(app: Litestar) -> Iterator[tuple[str, HTTPRouteHandler]]:
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            generated = isinstance(handler, HTTPRouteHandler) and "OPTIONS" in handler.http_methods
            if not generated and not route.path.startswith(ELSEWHERE):
                yield route.path_format, handler


def test_every_address_asks_for_a_scope_or_is_known_to_be_public(app: Litestar) -> None:
    open_addresses = set()
    for path, handler in handlers(app):
        scopes = [getattr(guard, "scope", None) for guard in handler.resolve_guards()]
        declared = [getattr(guard, "scope", None) for guard in handler.guards or ()]
        assert len(scopes) == len(declared) <= 1, path
        if not declared:
            open_addresses.add(path)
        else:
            assert declared[0] in set(Scope), path
    assert open_addresses == PUBLIC


def test_the_errors_described_are_those_that_are_sent(app: Litestar) -> None:
    for path, item in app.openapi_schema.to_schema()["paths"].items():
        for method, operation in item.items():
            for status, response in operation["responses"].items():
                if status.startswith(("4", "5")):
                    (body,) = response["content"].values()
                    kind = "OpenAIFaultView" if path.startswith("/v1/") else "ProblemView"
                    assert body["schema"] == {"$ref": f"#/components/schemas/{kind}"}, (
                        f"{method} {path}: {status}"
                    )


def test_content_is_shown_to_those_who_may_see_content(app: Litestar) -> None:
    shown = [handler for path, handler in handlers(app) if path.startswith("/generations")]
    assert shown
    for handler in shown:
        assert [getattr(guard, "scope", None) for guard in handler.guards or ()] == [
            Scope.READ_CONTENT
        ]


def test_the_documentation_describes_every_address(app: Litestar) -> None:
    document = app.openapi_schema.to_schema()
    described = set(document["paths"])
    for path, handler in handlers(app):
        if handler.resolve_include_in_schema():
            assert path.replace(":str", "") in described, path
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in {"get", "post", "put", "patch", "delete"}:
                assert operation["summary"], (method, path)
                assert operation["tags"], (method, path)


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions"])
def test_the_options_of_a_request_are_described_with_their_bounds(app: Litestar, path: str) -> None:
    described = app.openapi_schema.to_schema()
    body = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    name = body["schema"]["$ref"].rpartition("/")[2]
    options = described["components"]["schemas"][name]["properties"]
    assert (options["frequency_penalty"]["minimum"], options["frequency_penalty"]["maximum"]) == (
        -2.0,
        2.0,
    )
    assert options["repetition_penalty"]["minimum"] > 0
    assert "the prompt does not" in options["presence_penalty"]["description"]
    assert "logit_bias" in options
