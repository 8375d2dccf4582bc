"""`/docs`: the HTTP interface, written from its OpenAPI document. Nothing is loaded from elsewhere.

A page with somebody else's script in it could act for whoever is signed in beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from litestar import Request, Router
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import OpenAPIRenderPlugin
from markupsafe import Markup, escape

from dashboards.rendering import environment
from dashboards.security import SecurityHeaders

PATH = "/docs"
_REFERENCE = "#/components/schemas/"
_BOUNDS = {
    "minimum": "from",
    "maximum": "to",
    "minLength": "characters, from",
    "maxLength": "characters, to",
    "minItems": "items, from",
    "maxItems": "items, to",
    "pattern": "matches",
}


def described(title: str, version: str) -> OpenAPIConfig:
    """How the application describes itself: this page at `/docs`, and `/docs/openapi.json`."""
    return OpenAPIConfig(
        title=title,
        version=version,
        render_plugins=[ReferencePage()],
        openapi_router=Router(
            PATH, route_handlers=[], middleware=[SecurityHeaders()], include_in_schema=False
        ),
    )


class ReferencePage(OpenAPIRenderPlugin):
    """Every address with what it takes and answers, by tag; then the shapes of bodies."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: Mapping[str, Any]) -> bytes:
        """Write the page."""
        content = (
            environment()
            .get_template("api_reference.html")
            .render(
                document=openapi_schema,
                groups=_by_tag(openapi_schema["paths"]),
                shape=shape,
                bounds=bounds,
                prose=prose,
                json_path=self.get_openapi_json_route(request),
                path=request.url.path,
                viewer=None,
                notice=None,
            )
        )
        return content.encode()


def shape(schema: Mapping[str, Any]) -> Markup:
    """A schema in a few words: `string or null`, `list of Message`, the latter with a link."""
    match schema:
        case {"$ref": reference}:
            name = reference.removeprefix(_REFERENCE)
            said = Markup('<a href="#{0}">{0}</a>').format(name)
        case {"oneOf": kinds}:
            said = Markup(" or ").join(map(shape, kinds))
        case {"type": list(kinds)}:
            said = Markup(" or ").join(shape({**schema, "type": kind}) for kind in kinds)
        case {"enum": values}:
            said = Markup(" or ").join(map(Markup("<code>{}</code>").format, values))
        case {"const": value}:
            said = Markup("<code>{}</code>").format(value)
        case {"type": "array"}:
            said = Markup("list of {}").format(shape(schema.get("items", {})))
        case {"type": "object", "additionalProperties": values} if values:
            said = Markup("object of {}").format(shape(values))
        case _:
            said = escape(schema.get("format") or schema.get("type", "any value"))
    return said


def bounds(schema: Mapping[str, Any]) -> str:
    """What a value must keep to beside its kind, and what it is when left out."""
    said = [f"{words} {schema[key]}" for key, words in _BOUNDS.items() if key in schema]
    if schema.get("default") is not None:
        said.append(f"default {json.dumps(schema['default'])}")
    return ", ".join(said)


def prose(text: str) -> Markup:
    """A description, with what stands between backticks set as code."""
    parts = enumerate(text.split("`"))
    return Markup().join(
        Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in parts
    )


def _by_tag(paths: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str, Mapping[str, Any]]]]]:
    """(tag, [(method, path, operation)]), by name; the first tag decides."""
    groups: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, item in sorted(paths.items()):
        for method, operation in item.items():
            groups.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    return sorted(groups.items())
