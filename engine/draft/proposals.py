"""A candidate continuation, who proposed it, and on what evidence."""

from __future__ import annotations

from enum import IntFlag
from typing import NamedTuple

# Evidence beyond this many matching tokens makes no difference any more.
LONGEST_MATCH = 32


class Source(IntFlag):
    """Where candidates come from; several may propose the same edge."""

    SUFFIX = 1  # the request's own earlier text
    SHARED = 2  # other requests of the same scope
    RECYCLED = 4  # what a rejected block left behind


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
