"""The grammars of one vocabulary, compiled once, and the places that requests are at in them.

Dims: V vocabulary.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from engine.errors import EngineError, InvalidRequest
from engine.grammar.compilation import compiled
from engine.grammar.trial import try_out
from engine.tokenizer import Tokenizer

_KEPT = 32  # schemas


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

    def certain(self) -> tuple[int, ...]:
        """Return the tokens that must come next, up to the first choice."""
        return tuple(self._matcher.compute_ff_tokens())

    def take(self, token: int) -> bool:
        """Go on behind a token that the last row allowed; returns whether it allowed no other.

        Raises GrammarFailed.
        """
        if not self._matcher.consume_token(token):
            raise GrammarFailed("the schema became too complex to follow")
        return self._alternatives == 1


class Grammars:
    """The grammars of one model's vocabulary. May be used from any thread.

    Built with the first schema: until then it costs nothing. With `guarded`, schemas come from
    strangers, and each is tried out in a process of its own first.
    """

    def __init__(self, tokenizer: Tokenizer, *, guarded: bool = False) -> None:
        self._tokenizer = tokenizer
        self._guarded = guarded
        self._lock = Lock()
        self._compiling = Lock()
        self._vocabulary: LLTokenizer | None = None
        self._known: OrderedDict[str, LLMatcher | str] = OrderedDict()  # or why it is refused

    def open(self, schema: str) -> GrammarState:
        """Return the beginning of a schema's grammar; `schema` is JSON text.

        Raises InvalidRequest for what is no schema, or one that can't be honoured.
        """
        with self._lock:
            known = self._known.get(schema)
        if known is None:
            with self._compiling:  # nobody waits for a stranger's schema but who brings a new one
                known = self._known.get(schema) or self._compiled(schema)
        with self._lock:
            known = self._known.setdefault(schema, known)
            self._known.move_to_end(schema)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
            if isinstance(known, str):
                raise InvalidRequest(known, "json_schema")
            return GrammarState(known.deep_copy(), self._tokenizer.vocab_size)

    def _compiled(self, schema: str) -> LLMatcher | str:
        try:
            if self._guarded:
                try_out(schema)
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer)
            return compiled(schema, self._vocabulary)
        except InvalidRequest as error:
            return str(error)


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
