"""A plan and its trees as the rows of one forward pass."""

from __future__ import annotations

from engine_sequences import sequence

from engine.cache.pages import PagePool
from engine.graph.lattice import LatticeBuilder
from engine.graph.tree import TokenTree, bare, unroll
from engine.loop.rows import Part, step_rows
from engine.records import Work
from engine.scheduler.plan import Turn


def branching(root: int) -> TokenTree:
    """root -> 7 -> 8, and root -> 9."""
    builder = LatticeBuilder(depth_limit=2)
    builder.add([7, 8], [0.9, 0.9], 1)
    builder.add([9], [0.1], 1)
    return unroll(builder.build(), root, 4)


def test_pending_rows_come_first_then_the_trees_nodes_each_with_its_own_path() -> None:
    pool = PagePool(4, 4)
    running = sequence(pool, 1, prompt_length=6)  # tokens 1000, 1001, ...
    running.table.reserve(12)
    running.advance(4)
    tree = branching(1005)
    assert tree.tokens == (1005, 7, 8, 9)
    running.table.reserve(9)
    rows = step_rows([Part(Turn(running, 2), tree)])
    slots = running.table.slots(0, 9).tolist()
    assert rows.token_ids.tolist() == [1004, 1005, 7, 8, 9]
    assert rows.positions.tolist() == [4, 5, 6, 7, 6]
    assert rows.slots.tolist() == slots[4:9]
    assert rows.logit_rows.tolist() == [1, 2, 3, 4]
    (segment,) = rows.segments
    assert segment.committed.tolist() == slots[:4]
    a, b, seven, eight, nine = slots[4:9]
    assert segment.tail.tolist() == [
        [a, -1, -1, -1],
        [a, b, -1, -1],
        [a, b, seven, -1],
        [a, b, seven, eight],
        [a, b, nine, -1],
    ]


def test_requests_follow_each_other_and_a_chunk_without_a_draw_wants_no_logits() -> None:
    pool = PagePool(8, 4)
    first, second = sequence(pool, 1, prompt_length=6), sequence(pool, 2, prompt_length=3)
    first.table.reserve(6)
    second.table.reserve(3)
    rows = step_rows([Part(Turn(first, 2), None), Part(Turn(second, 3), bare(2002))])
    assert rows.token_ids.tolist() == [1000, 1001, 2000, 2001, 2002]
    assert rows.positions.tolist() == [0, 1, 0, 1, 2]
    assert rows.logit_rows.tolist() == [4]
    assert [segment.tail.shape for segment in rows.segments] == [(2, 2), (3, 3)]
    assert [len(segment.committed) for segment in rows.segments] == [0, 0]


def test_work_tells_first_computation_from_recomputation_and_counts_keys() -> None:
    pool = PagePool(8, 4)
    running = sequence(pool, 1, prompt_length=6)
    running.table.reserve(6)
    assert Part(Turn(running, 4), None).work == Work(prefill_tokens=4, kv_read_tokens=1 + 2 + 3 + 4)
    running.advance(4)
    running.table.release()
    running.computed = 0
    running.table.reserve(9)
    again = Part(Turn(running, 6), branching(1005))
    assert again.work == Work(
        prefill_tokens=2,
        recomputed_tokens=4,
        verified_nodes=3,
        kv_read_tokens=5 + 6 + 7 + 8 + 7,
        recomputed_kv_tokens=1 + 2 + 3 + 4,
    )
