"""The request's own past: where did its last few tokens occur before, and what followed?

Nothing is indexed: the text is searched for its own end when somebody asks, as bytes. That takes
some microseconds for a few thousand tokens, and a request that is not drafted pays nothing.

    tokens    a b c d a b c e a b c        two tokens agree where a `c` follows a `b`: at 6 and 2
                  ^       ^       ^
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from engine.draft.proposals import LONGEST_MATCH, Continuation

_LEAST_MATCH = 2  # a single token in common is no evidence
_OCCURRENCES = 64  # looked at, the most recent ones
_TOKEN_BYTES = 4


class Suffixes:
    """One growing text that is searched for its own end."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: array[int] = array("i")
        self._bytes = bytearray()
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text."""
        added = array("i", tokens)
        self._tokens.extend(added)
        self._bytes += added.tobytes()

    def continuations(self, count: int, depth: int) -> list[Continuation]:
        """Return up to `count` continuations of the text, each up to `depth` tokens.

        Longest match first, the most recent of equals first; each begins with another token. A
        continuation that reaches the end of the text goes on with itself: a period repeats.
        """
        found: dict[int, tuple[int, int]] = {}  # first token -> match length, place
        for place in self._places():
            first = self._tokens[place + 1]
            known = found[first][0] if first in found else 0
            if known < LONGEST_MATCH and (length := self._agreement(place)) > known:
                found[first] = (length, place)
        best = sorted(found.values(), reverse=True)[:count]
        return [Continuation(length, self._following(place, depth)) for length, place in best]

    def _places(self) -> list[int]:
        """Return where the last `_LEAST_MATCH` tokens ended before, the most recent first."""
        places: list[int] = []
        if len(self._tokens) <= _LEAST_MATCH:
            return places
        wanted = self._bytes[-_LEAST_MATCH * _TOKEN_BYTES :]
        before = len(self._bytes) - _TOKEN_BYTES  # where the next occurrence must have ended
        while len(places) < _OCCURRENCES:
            at = self._bytes.rfind(wanted, 0, before)
            if at < 0:
                break
            before = at + len(wanted) - 1
            if at % _TOKEN_BYTES == 0:
                places.append(at // _TOKEN_BYTES + _LEAST_MATCH - 1)
        return places

    def _agreement(self, place: int) -> int:
        """Return how many tokens that end at `place` equal the text's last ones."""
        tokens, length, limit = self._tokens, _LEAST_MATCH, min(LONGEST_MATCH, place + 1)
        while length < limit and tokens[place - length] == tokens[-1 - length]:
            length += 1
        return length

    def _following(self, place: int, depth: int) -> tuple[int, ...]:
        tokens = list(self._tokens[place + 1 : place + 1 + depth])
        period = len(self._tokens) - 1 - place
        while len(tokens) < depth:
            tokens.append(tokens[len(tokens) - period])
        return tuple(tokens)
