"""From the text of a JSON schema to a grammar, by `llguidance`, or the reason why not.

The form is that of `json.dumps`: one space after a colon and a comma, no other space between
tokens, so that a model can't fill its answer with blanks, and properties come in the schema's
order. What the library does not implement is refused, never ignored.
"""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.errors import InvalidRequest

SCHEMA_BYTES_MAX = 65_536
SCHEMA_DEPTH_MAX = 64


def compiled(schema: str, vocabulary: LLTokenizer) -> LLMatcher:
    """Return a matcher at the beginning of a schema's grammar.

    Raises InvalidRequest for what is no schema, or one that can't be honoured. Takes as long as it
    takes: see `engine.grammar.trial` for schemas of strangers.
    """
    _check(schema)
    try:
        grammar = LLMatcher.grammar_from_json_schema(
            schema,
            overrides={
                "lenient": False,
                "whitespace_flexible": False,
                "item_separator": ", ",
                "key_separator": ": ",
            },
        )
    except ValueError as error:
        raise refused(str(error)) from error
    matcher = LLMatcher(
        vocabulary,
        grammar,
        log_level=0,
        limits=LLParserLimits(
            max_grammar_size=100_000, max_lexer_states=50_000, verbose_errors=False
        ),
    )
    if matcher.is_error():
        raise refused(matcher.get_error())
    # What may come first is only worked out now: a schema that is nothing but itself has no end.
    begun = matcher.deep_copy()
    begun.compute_bitmask()
    if begun.is_error():
        raise refused("it is too complex to follow, or can't be satisfied")
    if warnings := matcher.get_grammar_warnings():
        raise refused("; ".join(warnings))
    return matcher


def refused(reason: str) -> InvalidRequest:
    """Return the error for a schema that can't be honoured."""
    shown = " ".join(reason.split())[:300] or "no reason was given"
    return InvalidRequest(f"this schema cannot be honoured: {shown}", "json_schema")


def _check(schema: str) -> None:
    """Raise InvalidRequest for text that is no JSON object, is too long or too deep."""
    if len(schema.encode(errors="surrogatepass")) > SCHEMA_BYTES_MAX:
        raise InvalidRequest(f"a schema has at most {SCHEMA_BYTES_MAX} bytes", "json_schema")
    try:
        document = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema is not JSON: {error}", "json_schema") from error
    if not isinstance(document, dict):
        raise InvalidRequest("a schema is a JSON object", "json_schema")
    if "x-guidance" in document:
        raise refused('Unimplemented keys: ["x-guidance"]')
    level: list[Any] = [document]
    for _ in range(SCHEMA_DEPTH_MAX):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise InvalidRequest(f"a schema is at most {SCHEMA_DEPTH_MAX} levels deep", "json_schema")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
