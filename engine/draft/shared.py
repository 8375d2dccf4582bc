"""The shared draft cache: what other requests of a scope said after the same few tokens.

Every drafted request appends what it emits to a *document*. Three tokens of context find the
documents' positions, most recent first, through an index of the scope's own; longer agreement is
then checked token by token. A scope is a tenant, whose documents no other tenant sees, or what is
public, which only requests that chose it read and write. When the cache is full, the least
recently used documents go first. One token takes about 150 bytes.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.draft.proposals import LONGEST_MATCH, Continuation

ORDER = 3
_OCCURRENCES = 8
_POSITION_BITS = 24  # of a reference: document serial, then position
_TOKEN_BITS = 21  # three tokens make one 63-bit key


class Scope(NamedTuple):
    """Who shares documents: one tenant's requests, or, where that is null, the public ones."""

    tenant_id: str | None


PUBLIC = Scope(None)


@dataclass(slots=True, eq=False)
class Document:
    """One request's emitted tokens, preceded by the end of its prompt."""

    serial: int
    scope: Scope
    tokens: array[int]
    context: int  # leading tokens that were not emitted: they match, but aren't proposed
    previous: array[int] = field(default_factory=lambda: array("q"))  # [position] -> reference
    kept: bool = True  # false once evicted; nothing is added then


class SharedDrafts:
    """The documents of all scopes, within one bound. Not thread-safe."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._documents: OrderedDict[int, Document] = OrderedDict()  # least recently used first
        self._latest: dict[Scope, dict[int, int]] = {}  # scope -> key -> newest reference
        self._next_serial = 0
        self.tokens = 0
        self.lookups = 0
        self.hits = 0
        self.evictions = 0

    def open(self, scope: Scope, prompt: Sequence[int]) -> Document:
        """Start the document of one request."""
        context = array("i", prompt[-LONGEST_MATCH:])
        document = Document(self._next_serial, scope, context, len(context))
        document.previous.extend([-1] * len(context))
        self._next_serial += 1
        self._documents[document.serial] = document
        self.tokens += len(context)
        self._evict()
        return document

    def append(self, document: Document, tokens: Sequence[int]) -> None:
        """Add emitted tokens to a document and to its scope's index; evicts what is oldest."""
        if not document.kept:
            return
        latest = self._latest.setdefault(document.scope, {})
        for token in tokens:
            # The tokens before this one are now known to be followed by something.
            end = len(document.tokens) - 1
            document.tokens.append(token)
            document.previous.append(-1)
            if end + 1 >= ORDER and end + 1 < 1 << _POSITION_BITS:
                key = _key(document.tokens, end)
                document.previous[end] = latest.get(key, -1)
                latest[key] = document.serial << _POSITION_BITS | end
        self.tokens += len(tokens)
        self._documents.move_to_end(document.serial)
        self._evict()

    def continuations(
        self, document: Document, recent: Sequence[int], count: int, depth: int
    ) -> list[Continuation]:
        """Return what followed `recent` in the other documents of `document`'s scope.

        Up to `count` continuations of up to `depth` tokens, longest match first, the most recent of
        equals first; each begins with another token.
        """
        latest = self._latest.get(document.scope)
        if latest is None or len(recent) < ORDER:
            return []
        self.lookups += 1
        reference = latest.get(_key(recent, len(recent) - 1), -1)
        matches = []
        for looked in range(_OCCURRENCES):
            if reference < 0:
                break
            other = self._documents.get(reference >> _POSITION_BITS)
            if other is None:
                break  # evicted, and the rest of the chain with it
            at = reference & ((1 << _POSITION_BITS) - 1)
            if other is not document:
                matches.append((-_match_length(other.tokens, at, recent), looked, other, at))
            reference = other.previous[at]
        found: dict[int, Continuation] = {}
        for minus_length, _, other, at in sorted(matches, key=lambda match: match[:2]):
            tokens = tuple(other.tokens[at + 1 : at + 1 + depth])
            if len(found) < count and tokens[0] not in found:
                found[tokens[0]] = Continuation(-minus_length, tokens)
                self._documents.move_to_end(other.serial)
        self.hits += bool(found)
        return list(found.values())

    def recalls(self, scope: Scope, recent: Sequence[int], length: int) -> bool:
        """Whether a document of the scope agrees with the last `length` tokens. Changes nothing."""
        latest = self._latest.get(scope, {})
        reference = latest.get(_key(recent, len(recent) - 1), -1) if len(recent) >= ORDER else -1
        for _ in range(_OCCURRENCES):
            other = self._documents.get(reference >> _POSITION_BITS)
            if reference < 0 or other is None:
                return False
            at = reference & ((1 << _POSITION_BITS) - 1)
            if _match_length(other.tokens, at, recent) >= length:
                return True
            reference = other.previous[at]
        return False

    def _evict(self) -> None:
        while self.tokens > self._capacity and self._documents:
            serial, document = self._documents.popitem(last=False)
            document.kept = False
            self.evictions += 1
            self.tokens -= len(document.tokens)
            latest = self._latest.get(document.scope, {})
            for end in range(max(ORDER, document.context) - 1, len(document.tokens) - 1):
                key = _key(document.tokens, end)
                if latest.get(key, -1) >> _POSITION_BITS == serial:
                    del latest[key]
            if not latest:
                self._latest.pop(document.scope, None)


def _key(tokens: Sequence[int], end: int) -> int:
    return tokens[end - 2] << 2 * _TOKEN_BITS | tokens[end - 1] << _TOKEN_BITS | tokens[end]


def _match_length(tokens: Sequence[int], at: int, recent: Sequence[int]) -> int:
    """Return how many tokens that end at `at` equal those that end `recent`."""
    limit = min(LONGEST_MATCH, at + 1, len(recent))
    length = ORDER
    while length < limit and tokens[at - length] == recent[-1 - length]:
        length += 1
    return length
