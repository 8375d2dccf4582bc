"""Logical positions to slots, and prefixes shared within a tenant."""

import pytest

from engine.cache.page_table import PageTable
from engine.cache.pages import PagePool, PagesExhausted


def filled(pool: PagePool, tokens: list[int], tenant: str = "t") -> PageTable:
    """A table whose tokens are all computed and published."""
    table = PageTable(pool, tenant)
    table.adopt(tokens)
    table.reserve(len(tokens))
    table.publish(tokens, len(tokens))
    return table


def test_slots_run_through_the_pages_in_logical_order() -> None:
    pool = PagePool(4, 4)
    table = PageTable(pool, "t")
    table.reserve(6)
    first, second = table._pages
    assert table.slots(0, 6).tolist() == [
        *range(first * 4, first * 4 + 4),
        second * 4,
        second * 4 + 1,
    ]
    assert table.capacity == 8


def test_a_prefix_is_reused_by_whole_pages_and_never_to_the_last_token() -> None:
    pool = PagePool(16, 4)
    tokens = list(range(8))
    first = filled(pool, tokens)
    longer, equal, shorter = (PageTable(pool, "t") for _ in range(3))
    assert longer.adopt([*tokens, 8]) == 8
    assert equal.adopt(tokens) == 4  # the last token's logits are needed
    assert shorter.adopt(tokens[:4]) == 0
    assert longer.slots(0, 8).tolist() == first.slots(0, 8).tolist()


def test_a_prefix_survives_the_request_that_computed_it() -> None:
    pool = PagePool(4, 4)
    filled(pool, list(range(9))).release()
    assert (pool.cached, pool.used) == (2, 0)
    assert PageTable(pool, "t").adopt(list(range(9))) == 8
    assert pool.used == 2


def test_another_tenant_never_sees_a_prefix() -> None:
    pool = PagePool(8, 4)
    filled(pool, list(range(9)), tenant="a")
    assert PageTable(pool, "b").adopt(list(range(9))) == 0


def test_a_page_is_found_only_after_the_same_beginning() -> None:
    pool = PagePool(8, 4)
    filled(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert PageTable(pool, "t").adopt([9, 9, 9, 9, 5, 6, 7, 8, 9]) == 0


def test_only_full_pages_of_committed_tokens_are_published() -> None:
    pool = PagePool(8, 4)
    table = PageTable(pool, "t")
    tokens = list(range(12))
    table.reserve(12)
    table.publish(tokens, 7)
    assert PageTable(pool, "t").adopt(tokens) == 4
    table.publish(tokens, 8)
    assert PageTable(pool, "t").adopt(tokens) == 8


def test_a_request_that_comes_back_publishes_again_what_was_evicted() -> None:
    pool = PagePool(3, 4)
    tokens = list(range(9))
    table = filled(pool, tokens)
    table.release()
    other = PageTable(pool, "x")
    other.reserve(12)
    other.release()
    assert table.adopt(tokens) == 0
    table.reserve(9)
    table.publish(tokens, 9)
    table.release()
    assert table.adopt(tokens) == 8


def test_trimming_gives_back_whole_pages_beyond_a_length() -> None:
    pool = PagePool(4, 4)
    table = PageTable(pool, "t")
    table.reserve(13)
    table.trim(5)
    assert (table.capacity, pool.free) == (8, 2)
    assert table.pages_wanted(9) == 1


def test_a_reservation_that_cannot_be_had_changes_nothing() -> None:
    pool = PagePool(2, 4)
    table = PageTable(pool, "t")
    table.reserve(4)
    with pytest.raises(PagesExhausted):
        table.reserve(12)
    assert (table.capacity, pool.free) == (4, 1)
