"""Request bodies, decoded strictly: no string passes for a number, no unknown field is dropped.

Litestar's own conversion is lenient (`"nan"` would become a temperature), so routes that take a
body declare `dto=StrictBody`, which hands the bytes to msgspec as they came.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, ClassVar, TypeVar

import msgspec
from litestar._openapi.schema_generation import SchemaCreator
from litestar.dto import AbstractDTO
from litestar.dto.data_structures import DTOFieldDefinition
from litestar.openapi.spec import Reference, Schema
from litestar.typing import FieldDefinition

from api.errors import InvalidBody

T = TypeVar("T")

_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_FIELD = re.compile(r"^Object (?:contains unknown|missing required) field `(?P<field>[^`]*)`")


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a JSON body. Raises InvalidBody that names the offending parameter."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidBody(*located(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidBody("the body is nested too deeply") from None


def located(message: str) -> tuple[str, str | None]:
    """Split a msgspec message into what is wrong and the path of the parameter that is."""
    at = _PATH.search(message)
    path = at["path"] if at else ""
    text = message[: at.start()] if at else message
    field = _FIELD.match(text)
    if field:
        path = f"{path}.{field['field']}" if path else field["field"]
    return text, path or None


class StrictBody(AbstractDTO[Any]):
    """Decodes a handler's `data` with `decode`; its OpenAPI schema is the struct's own."""

    __slots__ = ()

    _kinds: ClassVar[dict[str, Any]] = {}  # by handler id

    def decode_bytes(self, value: bytes) -> Any:
        """Decode the body for the handler that is being called."""
        return decode(value, self._kinds[self.asgi_connection.route_handler.handler_id])

    @classmethod
    def create_for_field_definition(
        cls, field_definition: FieldDefinition, handler_id: str, backend_cls: Any = None
    ) -> None:
        """Remember what a handler takes; called by Litestar at registration."""
        if field_definition.name == "data":
            cls._kinds[handler_id] = field_definition.annotation

    @classmethod
    def create_openapi_schema(
        cls, field_definition: FieldDefinition, handler_id: str, schema_creator: SchemaCreator
    ) -> Reference | Schema:
        """The schema of the annotated type, unchanged."""
        return schema_creator.for_field_definition(field_definition)

    @classmethod
    def generate_field_definitions(
        cls, model_type: type[Any]
    ) -> Generator[DTOFieldDefinition, None, None]:
        """No transfer models are generated."""
        yield from ()

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        """No transfer models are generated."""
        return False
