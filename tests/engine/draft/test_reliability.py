"""Claimed against observed, edge by edge."""

import pytest

from engine.draft.reliability import Reliability
from engine.graph.lattice import LatticeBuilder


def test_only_edges_that_left_the_emitted_path_are_counted() -> None:
    builder = LatticeBuilder(3)
    builder.add([1, 2], [0.75, 0.45], origin=1)
    builder.add([3, 4], [0.15, 0.95], origin=2)
    lattice = builder.build()
    reliability = Reliability()
    reliability.observe(lattice, [1, 9])  # 1 was right, 2 was not; what follows 3 is not known
    table = {row.least: (row.edges, row.predicted, row.observed) for row in reliability.table()}
    assert table == {
        0.1: (1, pytest.approx(0.15), 0.0),
        0.4: (1, pytest.approx(0.45), 0.0),
        0.7: (1, pytest.approx(0.75), 1.0),
    }
    assert reliability.origins == [1, 2]
    assert [row.edges for row in reliability.table(2)] == [1]
    assert reliability.error == pytest.approx((0.15 + 0.45 + 0.25) / 3)


def test_without_edges_there_is_no_error_rather_than_none() -> None:
    assert Reliability().error is None
    assert Reliability().table() == ()
