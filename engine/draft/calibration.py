"""How often a source was right, given its evidence: counted, not believed.

A proposal's first token is a trial of (source, rank, match length); if it was right, the next one
is a trial with one more token of evidence, and so on until the first wrong one. Every proposal is
counted, whether or not its nodes were verified, because what the verifier said is known.

A source that has an opinion of its own, such as the block head, is judged by classes of opinion
instead: of the edges it gave about this probability, so many were right.

Counts belong to one tenant, since what is drafted for one must not depend on another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from engine.draft.proposals import Foreseen, Proposal, Source

_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)  # match lengths from here on are one class
_PRIOR_TRIALS = 8.0
_LOWER_RANK = 0.3  # of a first rank's prior
_SKEPTICISM = {Source.SUFFIX: 2.0, Source.SHARED: 3.0, Source.RECYCLED: 2.0}

_OPINIONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)  # where classes begin
_PRIOR_OPINIONS = 32.0  # trials that an opinion is worth

_Class = tuple[Source, int, int]


class Calibration:
    """Acceptance counts, with a prior of a few trials that grows with the match length."""

    def __init__(self) -> None:
        self._trials: dict[_Class, int] = {}
        self._successes: dict[_Class, int] = {}

    def weights(self, proposal: Proposal) -> list[float]:
        """Return, for each token, how likely it follows if those before it were right."""
        return [self._rate(_class(proposal, index)) for index in range(len(proposal.tokens))]

    def weight(self, source: Source, edge: Foreseen) -> float:
        """Return how likely an edge is, its source's opinion corrected by what came of others."""
        trial = _opinion(source, edge)
        successes = self._successes.get(trial, 0) + edge.probability * _PRIOR_OPINIONS
        return successes / (self._trials.get(trial, 0) + _PRIOR_OPINIONS)

    def observe_edges(
        self, source: Source, edges: Sequence[Foreseen], emitted: Sequence[int]
    ) -> None:
        """Count a source's edges that left the emitted path."""
        for edge in edges:
            if edge.depth > len(emitted) or (
                edge.depth > 1 and emitted[edge.depth - 2] != edge.previous
            ):
                continue
            trial, right = _opinion(source, edge), emitted[edge.depth - 1] == edge.token
            self._trials[trial] = self._trials.get(trial, 0) + 1
            self._successes[trial] = self._successes.get(trial, 0) + right

    def observe(self, proposal: Proposal, emitted: Sequence[int]) -> None:
        """Count a proposal against what was emitted in its place."""
        for index, (proposed, token) in enumerate(zip(proposal.tokens, emitted, strict=False)):
            trial = _class(proposal, index)
            self._trials[trial] = self._trials.get(trial, 0) + 1
            if proposed != token:
                return
            self._successes[trial] = self._successes.get(trial, 0) + 1

    def _rate(self, trial: _Class) -> float:
        source, rank, bucket = trial
        match_length = _BUCKETS[bucket]
        prior = match_length / (match_length + _SKEPTICISM[source])
        if rank > 0:
            prior *= _LOWER_RANK
        successes = self._successes.get(trial, 0) + prior * _PRIOR_TRIALS
        return successes / (self._trials.get(trial, 0) + _PRIOR_TRIALS)


def _opinion(source: Source, edge: Foreseen) -> _Class:
    return source, min(edge.depth, 2), bisect_right(_OPINIONS, edge.probability)


def _class(proposal: Proposal, index: int) -> _Class:
    """A token after the first is judged like any token with that much evidence behind it."""
    evidence = max(1, proposal.match_length + index)
    rank = proposal.rank if index == 0 else 0
    return proposal.source, rank, bisect_right(_BUCKETS, evidence) - 1
