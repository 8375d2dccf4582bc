"""A candidate continuation, who proposed it, and on what evidence."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

# Evidence beyond this many matching tokens makes no difference any more.
LONGEST_MATCH = 32


class Source(IntEnum):
    """Where candidates come from, a bit each: several may propose the same edge.

    No `IntFlag`, whose operators run in Python: a set of sources is a plain integer.
    """

    SUFFIX = 1  # the request's own earlier text
    SHARED = 2  # other requests of the same scope
    RECYCLED = 4  # what a rejected block left behind
    PHRASES = 8  # what the model often says, learned beforehand
    HEAD = 16  # the trained block head
    SCHEMA = 32  # what the request's schema leaves no alternative to


class Continuation(NamedTuple):
    """Tokens that once followed a context like the present one."""

    match_length: int  # how many tokens of context agreed
    tokens: tuple[int, ...]


class Proposal(NamedTuple):
    """A continuation that competes in the lattice."""

    source: Source
    rank: int  # 0 for the source's best; lower ranks begin with other tokens
    match_length: int
    tokens: tuple[int, ...]


class Foreseen(NamedTuple):
    """One edge from a source that weighs its own candidates."""

    depth: int  # 1 behind the root
    previous: int  # the token that it follows; not looked at behind the root
    token: int
    probability: float  # that it follows, in the source's own opinion
