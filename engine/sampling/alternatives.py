"""The tokens that could have stood in another's place, by raw log-probability.

Dims: V vocabulary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.model.statistics import RawStatistics
from engine.sampling.selection import largest


def likeliest(
    logits: NDArray[np.float32], count: int, statistics: RawStatistics
) -> tuple[tuple[int, float], ...]:
    """Return the `count` likeliest tokens of a raw row [V] and their log-probabilities, in nats.

    Likeliest first, ties to the lowest id. `statistics` are the row's. Raises NonFiniteLogits.
    """
    if not count:
        return ()
    ids = largest(logits, count)
    ids = ids[np.lexsort((ids, -logits[ids]))]
    return tuple((int(token), statistics.logprob(float(logits[token]))) for token in ids)
