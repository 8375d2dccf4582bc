"""Logical positions to slots, and prefixes shared within a tenant."""

import pytest

from engine.cache.page_table import PageTable
from engine.cache.pages import PagePool, PagesExhausted


def filled(pool: PagePool, tokens: list[int], tenant: str = "t") -> PageTable:
    """A table whose tokens are all computed and published."""
    table = PageTable(pool, tenant)
    table.adopt(tokens)
    table.reserve(len(tokens))
    table.publish(tokens, len(tokens), partial=True)
    return table


def adopted(pool: PagePool, tokens: list[int], tenant: str = "t") -> int:
    """How much of some tokens a new table finds; it lets go of them again."""
    table = PageTable(pool, tenant)
    table.adopt(tokens)
    count = table.adopted
    table.release()
    return count


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


def test_full_pages_are_shared_and_of_the_next_the_keys_that_agree_are_copied() -> None:
    pool = PagePool(16, 4)
    first = filled(pool, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = PageTable(pool, "t")
    second.adopt([0, 1, 2, 3, 4, 5, 99, 98])
    assert (second.capacity, second.adopted, second.lent) == (4, 6, 2)
    second.reserve(8)
    shared, own = second.slots(0, 4), second.slots(4, 6)
    assert shared.tolist() == first.slots(0, 4).tolist()
    assert second.copies() == list(zip(first.slots(4, 6).tolist(), own.tolist(), strict=True))
    assert not set(second.slots(4, 8).tolist()) & set(first.slots(0, 10).tolist())


def test_the_last_token_is_always_left_to_be_computed() -> None:
    pool = PagePool(16, 4)
    tokens = list(range(8))
    filled(pool, tokens)
    assert adopted(pool, [*tokens, 8]) == 8
    assert adopted(pool, tokens) == 7
    assert adopted(pool, tokens[:5]) == 4
    assert adopted(pool, tokens[:1]) == 0


def test_a_prefix_survives_the_request_that_computed_it() -> None:
    pool = PagePool(4, 4)
    filled(pool, list(range(9))).release()
    assert (pool.cached, pool.used) == (3, 0)
    assert adopted(pool, list(range(10))) == 9


def test_another_tenant_never_sees_a_prefix() -> None:
    pool = PagePool(8, 4)
    filled(pool, list(range(9)), tenant="a")
    assert adopted(pool, list(range(9)), tenant="b") == 0
    assert adopted(pool, list(range(9)), tenant="a") == 8


def test_a_page_is_found_only_after_the_same_beginning() -> None:
    pool = PagePool(8, 4)
    filled(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert adopted(pool, [9, 9, 9, 9, 5, 6, 7, 8, 9]) == 0


def test_only_committed_tokens_are_published() -> None:
    pool = PagePool(8, 4)
    table = PageTable(pool, "t")
    tokens = list(range(13))
    table.reserve(12)
    table.publish(tokens, 7)
    assert adopted(pool, tokens) == 4
    table.publish(tokens, 7, partial=True)
    assert adopted(pool, tokens) == 7
    table.publish(tokens, 12)
    assert adopted(pool, tokens) == 12
    pool.check()


def test_what_two_have_computed_alike_is_kept_once() -> None:
    pool = PagePool(8, 4)
    one, two = PageTable(pool, "t"), PageTable(pool, "t")
    tokens = list(range(10))
    for table in (one, two):
        table.reserve(10)
    for table in (one, two):
        table.publish(tokens, 10, partial=True)
    pool.check()
    assert one.slots(0, 8).tolist() == two.slots(0, 8).tolist()
    assert one.slots(8, 10).tolist() != two.slots(8, 10).tolist()
    assert pool.used == 4


def test_a_request_that_comes_back_publishes_again_what_was_evicted() -> None:
    pool = PagePool(3, 4)
    tokens = list(range(9))
    filled(pool, tokens).release()
    other = PageTable(pool, "x")
    other.reserve(12)
    other.release()
    assert adopted(pool, tokens) == 0
    filled(pool, tokens).release()
    assert adopted(pool, tokens) == 8


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


def test_a_page_that_was_copied_from_counts_as_used() -> None:
    pool = PagePool(2, 4)
    for content in ([1, 1, 1], [2, 2, 2]):
        filled(pool, content).release()
    assert adopted(pool, [1, 1, 3]) == 2
    pool.take(1)
    assert adopted(pool, [1, 1, 1]) == 2
    assert adopted(pool, [2, 2, 2]) == 0
