"""How often a source was right, given its evidence: counted, not believed.

A proposal's first token is a trial of (source, rank, match length); if it was right, the next one
is a trial with one more token of evidence, and so on until the first wrong one. Every proposal is
counted, whether or not its nodes were verified, because what the verifier said is known.

Counts belong to one tenant, since what is drafted for one must not depend on another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from engine.draft.proposals import Proposal, Source

_BUCKETS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)  # match lengths from here on are one class
_PRIOR_TRIALS = 8.0
_LOWER_RANK = 0.3  # of a first rank's prior
_SKEPTICISM = {Source.SUFFIX: 2.0, Source.SHARED: 3.0, Source.RECYCLED: 2.0}

_Class = tuple[Source, int, int]


class Calibration:
    """Acceptance counts, with a prior of a few trials that grows with the match length."""

    def __init__(self) -> None:
        self._trials: dict[_Class, int] = {}
        self._successes: dict[_Class, int] = {}

    def weights(self, proposal: Proposal) -> list[float]:
        """Return, for each token, how likely it follows if those before it were right."""
        return [self._rate(_class(proposal, index)) for index in range(len(proposal.tokens))]

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


def _class(proposal: Proposal, index: int) -> _Class:
    """A token after the first is judged like any token with that much evidence behind it."""
    evidence = max(1, proposal.match_length + index)
    rank = proposal.rank if index == 0 else 0
    return proposal.source, rank, bisect_right(_BUCKETS, evidence) - 1
