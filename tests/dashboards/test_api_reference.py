"""The page of the interface says what the OpenAPI document says, with nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from litestar import Litestar
from litestar.testing import TestClient
from tiny_models import write_tiny_dfm

from api.app import create_app
from api.settings import Settings
from dashboards.api_reference import bounds, shape


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient[Litestar]]:
    """The application, not started: neither page needs the gateway."""
    home: Path = tmp_path_factory.mktemp("home")
    app = create_app(Settings(home=home, model=str(write_tiny_dfm(home / "tiny.dfm"))))
    yield TestClient(app, raise_server_exceptions=False)
    app.state.database.dispose()


def test_every_address_and_every_shape_is_on_the_page(client: TestClient[Litestar]) -> None:
    page = client.get("/docs").text
    document = json.loads(client.get("/docs/openapi.json").content)
    for path, item in document["paths"].items():
        for method in item:
            assert f"<code>{method.upper()} {path}</code>" in page
    linked = set(re.findall(r'href="#(\w+)"', page)) - {"content"}
    assert linked <= set(re.findall(r'id="(\w+)"', page))
    assert set(document["components"]["schemas"]) <= set(re.findall(r'id="(\w+)"', page))


def test_nothing_is_loaded_from_elsewhere(client: TestClient[Litestar]) -> None:
    answer = client.get("/docs")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert not re.search(r'(src|href)="(https?:)?//', answer.text)


def test_the_bare_address_leads_to_the_pages(client: TestClient[Litestar]) -> None:
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (302, "/dashboard")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"type": ["integer", "null"]}, "integer or null"),
        (
            {"type": "array", "items": {"type": "string", "format": "date-time"}},
            "list of date-time",
        ),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({"enum": ["<b>"]}, "<code>&lt;b&gt;</code>"),
        ({"$ref": "#/components/schemas/Message"}, '<a href="#Message">Message</a>'),
        ({}, "any value"),
    ],
)
def test_a_schema_is_said_in_a_few_words(schema: dict[str, object], said: str) -> None:
    assert str(shape(schema)) == said


def test_bounds_and_a_default_of_zero_are_said() -> None:
    assert bounds({"minimum": 0, "maximum": 20, "default": 0}) == "from 0, to 20, default 0"
    assert bounds({"default": None}) == ""
