"""The likeliest tokens of a row."""

from __future__ import annotations

import numpy as np

from engine.model.statistics import raw_statistics
from engine.sampling.alternatives import likeliest


def test_the_likeliest_tokens_come_in_order_with_ties_for_the_lowest_id() -> None:
    row = np.array([0.0, 2.0, -1.0, 2.0, 1.0, 2.0], np.float32)
    (statistics,) = raw_statistics(row[None])
    assert [token for token, _ in likeliest(row, 3, statistics)] == [1, 3, 5]
    everything = likeliest(row, 6, statistics)
    assert [token for token, _ in everything] == [1, 3, 5, 4, 0, 2]
    assert all(value == statistics.logprob(float(row[token])) for token, value in everything)
    assert likeliest(row, 0, statistics) == ()
