"""Counting what follows what in a corpus, into the tables of `engine.draft.phrases`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine.draft.phrases import ORDERS, PROBABILITY_UNIT, WIDTH, Phrases, Table
from engine.training.corpus import Sequence

_BACKOFF = 4.0  # imaginary occurrences, distributed as the shorter context has it
_DISCOUNT = 0.5  # occurrences that a pair loses: what was seen once is rarer than it looks
_LEAST = 0.05  # probability of a successor that is kept
CONTEXTS_MAX = 120_000  # kept of one order

_Ints = NDArray[np.int64]


def count_phrases(sequences: Iterable[Sequence], vocab_size: int) -> Phrases:
    """Count the responses, each token with the tokens before it, and keep what is likely.

    A longer context leans on the shorter one: its successors' shares are drawn towards what the
    shorter one has, and the shorter one's successors are its own too, where they are likely enough.
    """
    contexts, successors = _occurrences(sequences)
    chance = np.full(len(successors), 1.0 / vocab_size)  # of each occurrence, given less context
    shorter: Table | None = None
    shorter_hashes = np.zeros(len(successors), np.int64)
    tables: dict[int, Table] = {}
    for order in sorted(ORDERS):
        own = contexts[:, contexts.shape[1] - order :]
        hashes = _hashes(own)
        kinds, example, kind_of = np.unique(hashes, return_index=True, return_inverse=True)
        totals = np.bincount(kind_of, minlength=len(kinds))
        pair_of_each = kind_of * vocab_size + successors
        pairs, pair_of, counts = np.unique(pair_of_each, return_inverse=True, return_counts=True)
        seen = counts[pair_of] - _DISCOUNT
        chance = (seen + _BACKOFF * chance) / (totals[kind_of] + _BACKOFF)
        chances = np.zeros(len(pairs))
        chances[pair_of] = chance  # the same for each occurrence of a pair
        if shorter is not None:
            leaned = _leaned(shorter, shorter_hashes[example], totals, vocab_size)
            unseen = ~np.isin(leaned[0], pairs)
            pairs = np.concatenate([pairs, leaned[0][unseen]])
            chances = np.concatenate([chances, leaned[1][unseen]])
        # whole contexts, the commonest, not what lies before the beginning of a text
        frequent = np.zeros(len(kinds), np.bool_)
        frequent[np.argsort(-totals, kind="stable")[:CONTEXTS_MAX]] = True
        frequent &= (own[example] >= 0).all(axis=1)
        kept = (chances >= _LEAST) & frequent[pairs // vocab_size]
        kind, token = np.divmod(pairs[kept], vocab_size)
        tables[order] = shorter = _table(kinds[kind], token, chances[kept])
        shorter_hashes = hashes
    return Phrases(tables)


def _leaned(
    shorter: Table, hashes: _Ints, totals: _Ints, vocab_size: int
) -> tuple[_Ints, NDArray[np.float64]]:
    """Return what contexts inherit from shorter ones, `hashes`: pairs, and how likely each is."""
    at = np.minimum(np.searchsorted(shorter.keys, hashes), len(shorter.keys) - 1)
    kind, rank = np.nonzero((shorter.keys[at] == hashes)[:, None] & (shorter.tokens[at] >= 0))
    share = _BACKOFF / (totals[kind] + _BACKOFF)
    chances = shorter.probabilities[at[kind], rank] * PROBABILITY_UNIT * share
    return kind * vocab_size + shorter.tokens[at[kind], rank], chances


def _occurrences(sequences: Iterable[Sequence]) -> tuple[_Ints, _Ints]:
    """Return the contexts [N, longest order], -1 where there are none, and what followed [N]."""
    longest = max(ORDERS)
    contexts, successors = [], []
    for sequence in sequences:
        padded = np.concatenate([np.full(longest, -1), sequence.tokens]).astype(np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(padded, longest)
        contexts.append(windows[sequence.prompt_length : len(sequence.tokens)])
        successors.append(sequence.tokens[sequence.prompt_length :].astype(np.int64))
    return np.concatenate(contexts), np.concatenate(successors)


def _hashes(contexts: _Ints) -> _Ints:
    """Hash rows as `engine.draft.phrases.context_hash` hashes a context."""
    digest = np.full(len(contexts), contexts.shape[1], np.uint64)
    for column in contexts.T:
        digest = (digest ^ column.astype(np.uint64)) * np.uint64(0x9E3779B1)
        digest &= np.uint64(0xFFFFFFFF)
        digest ^= digest >> np.uint64(15)
    return digest.astype(np.int64)


def _table(hashes: _Ints, tokens: _Ints, chances: NDArray[np.float64]) -> Table:
    """Keep the likeliest few successors of each context; the three are parallel."""
    order = np.lexsort((tokens, -chances, hashes))
    hashes, tokens, chances = hashes[order], tokens[order], chances[order]
    keys, first, place = np.unique(hashes, return_index=True, return_inverse=True)
    rank = np.arange(len(hashes)) - first[place]
    kept = rank < WIDTH
    table = Table(
        keys.astype(np.uint32),
        np.full((len(keys), WIDTH), -1, np.int32),
        np.zeros((len(keys), WIDTH), np.uint8),
    )
    table.tokens[place[kept], rank[kept]] = tokens[kept]
    table.probabilities[place[kept], rank[kept]] = np.rint(chances[kept] / PROBABILITY_UNIT)
    return table
