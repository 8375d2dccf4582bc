"""What a request's own options do to a row before its draw: penalties, biases, a grammar.

A sequence draws along one path, each token once, drafted or not. So its history is a state that
goes on with every draw; nodes that no token is drawn from cost nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.grammar.grammars import GrammarState
from engine.requests import GenerationRequest
from engine.sampling.penalties import Penalties, penalises
from engine.scheduler.admission import Limits


class Shaping:
    """The history of one sequence, as far as its options look at it."""

    def __init__(self, penalties: Penalties | None, grammar: GrammarState | None) -> None:
        self._penalties = penalties
        self._grammar = grammar

    @classmethod
    def of(cls, request: GenerationRequest, limits: Limits) -> Shaping | None:
        """Begin the history of a request; null where no option asks for one.

        Raises InvalidRequest for a schema that has no grammar.
        """
        penalties = grammar = None
        if penalises(request.sampling):
            penalties = Penalties(request.sampling, request.prompt_ids, limits.vocab_size)
        if request.json_schema is not None:
            grammar = limits.grammar(request.json_schema)
        return cls(penalties, grammar) if penalties or grammar else None

    def shaped(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the row [V] to draw from; the one given stays as it is. Raises GrammarFailed."""
        if self._penalties:
            logits = self._penalties.applied(logits)
        if self._grammar:
            logits = self._grammar.masked(logits)
        return logits

    def certain(self) -> tuple[int, ...]:
        """Return the tokens that must be drawn next, as far as a grammar tells."""
        return self._grammar.certain() if self._grammar else ()

    def take(self, token: int) -> bool:
        """Go on behind a drawn token; returns whether the grammar had left no other."""
        if self._penalties:
            self._penalties.take(token)
        return self._grammar.take(token) if self._grammar else False
