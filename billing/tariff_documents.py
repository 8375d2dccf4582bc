"""Reading a document into structs, collecting every fault with its path instead of the first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import yaml

from billing.errors import InvalidTariff

# What PyYAML raises, besides its own errors, for a scalar that is not what its tag says.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_DECIMAL = re.compile(r"[0-9]{1,13}(\.[0-9]{1,18})?")
_ENTRY = re.compile(r"[a-z][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a decimal field takes: 0 (or above) to `high`, with at most `places` decimal places."""

    places: int
    high: int
    above_zero: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """What a text field takes: a full match of `pattern`, described in words for its error."""

    pattern: str
    words: str


class _StrictLoader(yaml.SafeLoader):
    """YAML as it is usually meant: a key that stands twice is an error, not the last one."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except _UNREADABLE:
            if not isinstance(node, yaml.ScalarNode):
                raise
            kind = node.tag.rpartition(":")[2]
            raise InvalidTariff(
                [f"line {node.start_mark.line + 1}: not a valid {kind}: {node.value[:80]!r}"]
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise InvalidTariff([f"{_shown(key)}: given twice in the mapping at line {line}"])
        return super().construct_mapping(node, deep)


def load(text: str | bytes) -> Any:
    """Parse YAML or JSON text, in UTF-8 where it is bytes; raises InvalidTariff otherwise."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return yaml.load(text, _StrictLoader)  # noqa: S506 - derives from SafeLoader
    except UnicodeDecodeError:
        raise InvalidTariff(["not UTF-8 text"]) from None
    except RecursionError:
        raise InvalidTariff(["not a tariff: nested too deeply"]) from None
    except (yaml.YAMLError, *_UNREADABLE) as error:
        raise InvalidTariff([f"not YAML or JSON: {' '.join(str(error).split())}"]) from None


def read(kind: type[msgspec.Struct], value: Any, path: str, errors: list[str]) -> Any:
    """Build a struct of `kind` from plain values, appending faults to `errors`.

    The result only counts while `errors` is empty.
    """
    if not isinstance(value, Mapping):
        errors.append(f"{path or 'document'}: must be a mapping, not {_name(value)}")
        return None
    hints = get_type_hints(kind, include_extras=True)
    prefix = f"{path}." if path else ""
    faults = len(errors)
    errors += [
        f"{prefix}{_shown(key)}: unknown field; known here: {', '.join(hints)}"
        for key in value
        if key not in hints
    ]
    found = {}
    for field in msgspec.structs.fields(kind):
        if field.name in value:
            found[field.name] = _value(
                hints[field.name], value[field.name], prefix + field.name, errors
            )
        elif field.required:
            errors.append(f"{prefix}{field.name}: missing")
    return kind(**found) if len(errors) == faults else None


def _value(hint: Any, value: Any, path: str, errors: list[str]) -> Any:
    if get_origin(hint) is tuple:
        return _sequence(get_args(hint)[0], value, path, errors)
    if get_origin(hint) is dict:
        return _named(get_args(hint)[1], value, path, errors)
    options = [option for option in get_args(hint) if option is not NoneType]
    if get_origin(hint) is not Annotated and options:  # `X | None`
        return None if value is None else _value(options[0], value, path, errors)
    if get_origin(hint) is not Annotated:
        return read(hint, value, path, errors)
    rule = get_args(hint)[1]
    if isinstance(rule, Text):
        if not isinstance(value, str) or not re.fullmatch(rule.pattern, value):
            shown = repr(value) if isinstance(value, str) else _name(value)
            errors.append(f"{path}: must be {rule.words}, not {shown}")
        return value
    return _decimal(rule, value, path, errors)


def _sequence(kind: Any, value: Any, path: str, errors: list[str]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        errors.append(f"{path}: must be a list, not {_name(value)}")
        return ()
    return tuple(_value(kind, each, f"{path}[{place}]", errors) for place, each in enumerate(value))


def _named(kind: Any, value: Any, path: str, errors: list[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        errors.append(f"{path}: must be a mapping, not {_name(value)}")
        return {}
    errors += [
        f"{path}.{_shown(key)}: a name has up to 40 lower-case letters, digits and dashes"
        for key in value
        if not isinstance(key, str) or not _ENTRY.fullmatch(key)
    ]
    return {key: _value(kind, each, f"{path}.{_shown(key)}", errors) for key, each in value.items()}


def _decimal(limits: Limits, value: Any, path: str, errors: list[str]) -> Decimal | None:
    if not isinstance(value, str):
        errors.append(f'{path}: must be a quoted decimal such as "0.25", not {_name(value)}')
        return None
    if not _DECIMAL.fullmatch(value):
        errors.append(f"{path}: must be a non-negative plain decimal, not {value!r}")
        return None
    number = Decimal(value)
    if len(value.partition(".")[2].rstrip("0")) > limits.places:
        errors.append(f"{path}: at most {limits.places} decimal places")
    if number > limits.high:
        errors.append(f"{path}: at most {limits.high}")
    if limits.above_zero and not number:
        errors.append(f"{path}: must be above zero")
    return number


def _shown(key: Any) -> str:
    """A key as it is, unless that would do something to who reads it."""
    text = str(key)
    return text if text.isprintable() else ascii(text)


def _name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, int) and value.bit_length() > 64:  # Python writes no number of any length
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, bool | int | float):
        return f"the {'boolean' if isinstance(value, bool) else 'number'} {value}"
    return f"a {type(value).__name__}"
