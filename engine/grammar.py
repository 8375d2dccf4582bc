"""JSON schemas as grammars: which tokens may come next. Torch-free.

A schema is compiled by `llguidance` against the model's own bytes per token. The form is that of
`json.dumps`: one space after a colon and a comma, no other space between tokens, so that a model
can't fill its answer with blanks, and properties come in the schema's order. What the library does
not implement is refused, never ignored.

Dims: V vocabulary.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from engine.errors import EngineError, InvalidRequest
from engine.tokenizer import Tokenizer

ANY_OBJECT = '{"type":"object"}'
SCHEMA_BYTES_MAX = 65_536
SCHEMA_DEPTH_MAX = 64
_KEPT = 32  # compiled schemas


class GrammarFailed(EngineError):
    """A schema whose grammar outgrew its bounds while it was followed."""


class GrammarState:
    """A place in a grammar: what may follow the tokens taken so far."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._alternatives = 0

    def masked(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a copy of one row [V], minus infinity where a token may not follow.

        Raises GrammarFailed.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GrammarFailed("the schema became too complex to follow")
        allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        self._alternatives = int(np.count_nonzero(allowed))
        return np.where(allowed, logits, np.float32(-np.inf))

    def take(self, token: int) -> bool:
        """Go on behind a token that the last row allowed; returns whether it allowed no other.

        Raises GrammarFailed.
        """
        if not self._matcher.consume_token(token):
            raise GrammarFailed("the schema became too complex to follow")
        return self._alternatives == 1


class Grammars:
    """The grammars of one model's vocabulary. May be used from any thread.

    Built with the first schema: until then it costs nothing.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def open(self, schema: str) -> GrammarState:
        """Return the beginning of a schema's grammar; `schema` is JSON text.

        Raises InvalidRequest for what is no schema, or one that can't be honoured.
        """
        with self._lock:
            matcher = self._compiled.get(schema)
            if matcher is None:
                if self._vocabulary is None:
                    self._vocabulary = _vocabulary(self._tokenizer)
                matcher = self._compiled[schema] = _compile(schema, self._vocabulary)
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(schema)
            return GrammarState(matcher.deep_copy(), self._tokenizer.vocab_size)


class _TokenBytes:
    """A vocabulary as `llguidance`'s wrapper reads it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
        # A token without bytes is never text; 0xff marks it, and its number tells it apart.
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self.tokens = [piece or b"\xff<|%d|>" % token for token, piece in enumerate(pieces)]
        self.eos_token_id = min(tokenizer.eos_ids)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode_text(text)


def _vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    return LLTokenizer(
        TokenizerWrapper(_TokenBytes(tokenizer)), eos_token=sorted(tokenizer.eos_ids)
    )


def _compile(schema: str, vocabulary: LLTokenizer) -> LLMatcher:
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
        raise _refused(str(error)) from error
    matcher = LLMatcher(
        vocabulary,
        grammar,
        log_level=0,
        limits=LLParserLimits(
            max_grammar_size=100_000, max_lexer_states=50_000, verbose_errors=False
        ),
    )
    if matcher.is_error():
        raise _refused(matcher.get_error())
    if warnings := matcher.get_grammar_warnings():
        raise _refused("; ".join(warnings))
    return matcher


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
        raise _refused('Unimplemented keys: ["x-guidance"]')
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


def _refused(reason: str) -> InvalidRequest:
    shown = " ".join(reason.split())[:300] or "no reason was given"
    return InvalidRequest(f"this schema cannot be honoured: {shown}", "json_schema")
