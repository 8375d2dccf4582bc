from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.model.key_layout import TILE, lay_out

NULL = 10**6


def slots_of(layout, row):
    """The slots that a row sees, with their places in the layout."""
    places = np.r_[: layout.shared, layout.begins[row] : layout.ends[row]]
    return layout.keys[places], places


@st.composite
def tails(draw):
    """Tails of a random forest, and how many committed tokens lie before it."""
    count = draw(st.integers(1, 12))
    parents = [draw(st.integers(-1, row - 1)) for row in range(count)]
    paths: list[list[int]] = []
    for row, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), 5000 + row])
    width = max(map(len, paths))
    tail = np.array([path + [-1] * (width - len(path)) for path in paths], dtype=np.int64)
    return draw(st.integers(0, 3 * TILE)), paths, tail


@given(tails())
def test_a_row_sees_its_own_keys_in_order_at_their_position_in_the_tile(case):
    committed_count, paths, tail = case
    committed = np.arange(committed_count, dtype=np.int64)
    layout = lay_out(committed, tail, NULL)
    assert len(layout.keys) % TILE == 0
    for row, path in enumerate(paths):
        keys, places = slots_of(layout, row)
        assert keys.tolist() == [*committed.tolist(), *path]
        assert (places % TILE == np.arange(len(keys)) % TILE).all()


def test_a_prefill_chunk_is_one_lane():
    chunk = np.arange(100, 110, dtype=np.int64)
    tail = np.where(np.tri(10, dtype=bool), chunk, -1)
    layout = lay_out(np.arange(70, dtype=np.int64), tail, NULL)
    assert len(layout.keys) == 2 * TILE
    assert layout.keys[64:80].tolist() == [*range(64, 70), *range(100, 110)]
    assert (layout.begins == 64).all()
    assert layout.ends.tolist() == list(range(71, 81))


def test_branches_get_lanes_of_their_own_and_share_full_tiles():
    tail = np.array([[1000, -1], [1000, 1001], [1000, 1002]], dtype=np.int64)
    layout = lay_out(np.arange(65, dtype=np.int64), tail, NULL)
    assert layout.shared == 64
    assert layout.keys[64:68].tolist() == [64, 1000, 1001, NULL]
    assert layout.keys[128:132].tolist() == [64, 1000, 1002, NULL]
    assert layout.begins.tolist() == [64, 64, 128]


def test_paths_that_share_no_prefix_are_kept_apart():
    tail = np.array([[7, 8], [9, 8]], dtype=np.int64)
    layout = lay_out(np.empty(0, dtype=np.int64), tail, NULL)
    assert [slots_of(layout, row)[0].tolist() for row in (0, 1)] == [[7, 8], [9, 8]]
