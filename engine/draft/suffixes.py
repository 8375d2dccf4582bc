"""The request's own past: where did its last few tokens occur before, and what followed?

For each order n the index knows the end of the previous occurrence of the n tokens that end at
each position, so a lookup walks chains and never rescans the text:

    tokens    a b c d a b c e a b c        order 3, end 10: previous end 6, then 2
                  ^       ^       ^
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from engine.draft.proposals import LONGEST_MATCH, Continuation

ORDERS = (6, 5, 4, 3, 2)
_OCCURRENCES = 16  # looked at per order, the most recent first


class SuffixIndex:
    """An incremental index over one growing text."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._latest: dict[int, dict[tuple[int, ...], int]] = {order: {} for order in ORDERS}
        self._previous = {order: array("i") for order in ORDERS}
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text. Constant time per token."""
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens)
            for order in ORDERS:
                before = -1
                if end >= order:
                    key = tuple(self._tokens[end - order : end])
                    latest = self._latest[order]
                    before = latest.get(key, -1)
                    latest[key] = end - 1
                self._previous[order].append(before)

    def continuations(self, count: int, depth: int) -> list[Continuation]:
        """Return up to `count` continuations of the text, each up to `depth` tokens.

        Longest match first, the most recent of equals first; each begins with another token. A
        continuation that reaches the end of the text goes on with itself: a period repeats.
        """
        if not self._tokens:
            return []
        end = len(self._tokens) - 1
        found: list[Continuation] = []
        seen: set[int] = set()
        firsts: set[int] = set()
        for order in ORDERS:
            matches = []
            at = self._previous[order][end]
            for _ in range(_OCCURRENCES):
                if at < 0:
                    break
                if at not in seen:
                    seen.add(at)
                    matches.append((self._match_length(at, order), at))
                at = self._previous[order][at]
            for match_length, at in sorted(matches, reverse=True):
                first = self._tokens[at + 1]
                if first not in firsts:
                    firsts.add(first)
                    found.append(Continuation(match_length, self._following(at, depth)))
                    if len(found) == count:
                        return found
        return found

    def _match_length(self, at: int, known: int) -> int:
        """Return how many tokens that end at `at` equal those that end the text."""
        tokens, length, end = self._tokens, known, len(self._tokens) - 1
        while (
            length < LONGEST_MATCH and length <= at and tokens[at - length] == tokens[end - length]
        ):
            length += 1
        return length

    def _following(self, at: int, depth: int) -> tuple[int, ...]:
        tokens = self._tokens[at + 1 : at + 1 + depth]
        period = len(self._tokens) - 1 - at
        while len(tokens) < depth:
            tokens.append(tokens[len(tokens) - period])
        return tuple(tokens)
