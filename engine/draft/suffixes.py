"""The request's own past: where did its last few tokens occur before, and what followed?

Nothing is indexed: the text is compared with its own end when somebody asks. That takes some
microseconds for a few thousand tokens, and a request that is not drafted pays nothing.

    tokens    a b c d a b c e a b c        two tokens agree where a `c` follows a `b`: at 6 and 2
                  ^       ^       ^
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.draft.proposals import LONGEST_MATCH, Continuation

_LEAST_MATCH = 2  # a single token in common is no evidence
_OCCURRENCES = 64  # looked at, the most recent ones


class Suffixes:
    """One growing text that is searched for its own end."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._room = np.array(tokens, np.int32)
        self._length = len(self._room)

    def __len__(self) -> int:
        return self._length

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text."""
        length = self._length + len(tokens)
        if length > len(self._room):
            self._room = np.resize(self._room, 2 * length)
        self._room[self._length : length] = tokens
        self._length = length

    def continuations(self, count: int, depth: int) -> list[Continuation]:
        """Return up to `count` continuations of the text, each up to `depth` tokens.

        Longest match first, the most recent of equals first; each begins with another token. A
        continuation that reaches the end of the text goes on with itself: a period repeats.
        """
        text, end = self._room[: self._length], self._length - 1
        if end < _LEAST_MATCH:
            return []
        agree = text[1:end] == text[end]
        agree &= text[: end - 1] == text[end - 1]
        ends = np.flatnonzero(agree)[-_OCCURRENCES:] + 1
        agreeing: list[NDArray[np.int64]] = []  # places, by how many tokens agree there at least
        length = _LEAST_MATCH
        while len(ends):
            agreeing.append(ends)
            if length == LONGEST_MATCH:
                break
            ends = ends[ends >= length]
            ends = ends[text[ends - length] == text[end - length]]
            length += 1
        found: dict[int, Continuation] = {}
        for length, places in reversed(list(enumerate(agreeing, start=_LEAST_MATCH))):
            for at in reversed(places.tolist()):
                first = int(text[at + 1])
                if first not in found:
                    found[first] = Continuation(length, self._following(at, depth))
                    if len(found) == count:
                        return list(found.values())
        return list(found.values())

    def _following(self, at: int, depth: int) -> tuple[int, ...]:
        tokens: list[int] = self._room[at + 1 : min(at + 1 + depth, self._length)].tolist()
        period = self._length - 1 - at
        while len(tokens) < depth:
            tokens.append(tokens[len(tokens) - period])
        return tuple(tokens)
