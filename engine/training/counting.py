"""Counting what follows what in a corpus, into the tables of `engine.draft.phrases`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine.draft.phrases import ORDERS, PROBABILITY_UNIT, WIDTH, Phrases, Table
from engine.training.corpus import Sequence

_BACKOFF = 4.0  # imaginary occurrences, distributed as the shorter context has it
_LEAST = 0.05  # probability of a successor that is kept
CONTEXTS_MAX = 120_000  # kept of one order

_Ints = NDArray[np.int64]


def count_phrases(sequences: Iterable[Sequence], vocab_size: int) -> Phrases:
    """Count the responses, each token with the tokens before it, and keep what is likely."""
    contexts, successors = _occurrences(sequences)
    # by (context, successor) how likely it is, from order 1 up: each order leans on the one below
    likely = np.empty(0)
    tables: dict[int, Table] = {}
    for order in sorted(ORDERS):
        hashes = _hashes(contexts[:, contexts.shape[1] - order :])
        whole = (contexts[:, contexts.shape[1] - order :] >= 0).all(axis=1)
        kinds, kind_of = np.unique(hashes, return_inverse=True)
        pair = kind_of * vocab_size + successors
        pairs, pair_of, pair_counts = np.unique(pair, return_inverse=True, return_counts=True)
        totals = np.bincount(kind_of, minlength=len(kinds))
        if not likely.size:
            likely = np.full(len(successors), 1.0 / vocab_size)
        likely = (pair_counts[pair_of] + _BACKOFF * likely) / (totals[kind_of] + _BACKOFF)
        # every occurrence of a pair leans on the same shorter context, so any will do
        chances = np.zeros(len(pairs))
        chances[pair_of] = np.where(whole, likely, 0.0)
        frequent = np.zeros(len(kinds), np.bool_)
        frequent[np.argsort(-totals, kind="stable")[:CONTEXTS_MAX]] = True
        kept = (chances >= _LEAST) & frequent[pairs // vocab_size]
        kind, token = np.divmod(pairs[kept], vocab_size)
        tables[order] = _table(kinds[kind], token, chances[kept])
    return Phrases(tables)


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
