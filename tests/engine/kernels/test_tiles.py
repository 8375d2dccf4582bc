from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kernels.tiles import CANDIDATES, PROBE_ROWS, agreeing_tiles, cover

PROBE = torch.arange(PROBE_ROWS, dtype=torch.float32)[:, None]


def test_all_counts_agree_for_a_computation_by_rows():
    assert agreeing_tiles(lambda rows: rows * 3, PROBE) == CANDIDATES


def test_counts_that_change_a_row_are_left_out():
    def compute(rows):
        return rows + (1 if len(rows) == 1 or len(rows) > 12 else 0)

    assert agreeing_tiles(compute, PROBE) == (2, 3, 4, 6, 8, 10, 12)


def test_a_count_that_changes_only_its_last_row_is_left_out():
    def compute(rows):
        result = rows.clone()
        if len(rows) == 64:
            result[-1] += 1
        return result

    assert agreeing_tiles(compute, PROBE) == CANDIDATES[:-1]


def test_a_count_that_changes_only_one_of_many_rows_is_left_out():
    def compute(rows):
        return torch.where(rows == 13, rows + 1, rows) if len(rows) == 1 else rows

    assert agreeing_tiles(compute, PROBE) == CANDIDATES[1:]


def test_another_base_is_taken_where_four_rows_depend_on_their_place():
    def compute(rows):
        result = rows.clone()
        if len(rows) < 6:
            result[-1] += 1
        return result

    assert agreeing_tiles(compute, PROBE) == (6, 8, 10, 12, 16, 24, 32, 48, 64)


def test_single_rows_are_left_where_every_row_depends_on_its_place():
    assert agreeing_tiles(lambda rows: rows + torch.arange(len(rows))[:, None], PROBE) == (1,)


@given(rows=st.integers(0, 300), tiles=st.sets(st.sampled_from(CANDIDATES), min_size=1))
def test_a_cover_holds_all_rows_and_pads_only_its_last_tile(rows, tiles):
    sizes = cover(rows, sorted(tiles))
    assert set(sizes) <= tiles
    assert sum(sizes) >= rows
    assert sum(sizes[:-1]) < rows or not sizes


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(0, ()), (1, (1,)), (5, (6,)), (64, (64,)), (67, (64, 3)), (130, (64, 64, 2))],
)
def test_a_cover_takes_few_large_tiles(rows, sizes):
    assert cover(rows, CANDIDATES) == sizes
