"""The pool's books balance, whatever is done to it."""

import pytest

from engine.cache.pages import PageLeak, PagePool, PagesExhausted
from engine.cache.prefix_tree import Node


def put(pool: PagePool, page: int, tokens: tuple[int, ...], after: Node | None = None) -> Node:
    return pool.prefixes.insert("tenant", after, page, tokens)


def test_pages_go_from_free_to_used_to_cached_and_back() -> None:
    pool = PagePool(3, 4)
    kept, lost = pool.take(2)
    put(pool, kept, (1, 2))
    pool.drop([kept, lost])
    assert (pool.free, pool.used, pool.cached) == (2, 0, 1)
    pool.share(kept)
    assert (pool.free, pool.used, pool.cached) == (2, 1, 0)
    pool.drop([kept])
    assert sorted(pool.take(3)) == [0, 1, 2]
    assert kept not in pool.prefixes
    assert pool.evictions == 1


def test_a_request_for_too_many_pages_changes_nothing() -> None:
    pool = PagePool(3, 4)
    put(pool, pool.take(1)[0], (1,))
    with pytest.raises(PagesExhausted):
        pool.take(3)
    assert (pool.free, pool.used, pool.cached) == (2, 1, 0)


def test_the_least_recently_used_leaf_is_evicted_first() -> None:
    pool = PagePool(4, 4)
    pages = pool.take(4)
    first = put(pool, pages[0], (1, 2, 3, 4))
    put(pool, pages[1], (5,), first)
    put(pool, pages[2], (9, 9, 9, 9))
    put(pool, pages[3], (8,))
    pool.drop(pages[:2])
    pool.drop([pages[2]])
    pool.drop([pages[3]])
    pool.touch(pages[2])
    left = []
    for _ in range(4):
        pool.take(1)
        left.append([page in pool.prefixes for page in pages])
    assert left == [
        [True, False, True, True],
        [False, False, True, True],
        [False, False, True, False],
        [False, False, False, False],
    ]


def test_a_page_shared_by_two_is_used_until_both_have_dropped_it() -> None:
    pool = PagePool(2, 4)
    (page,) = pool.take(1)
    put(pool, page, (1,))
    pool.share(page)
    pool.drop([page])
    assert pool.used == 1
    pool.drop([page])
    assert (pool.used, pool.cached) == (0, 1)


def test_a_leak_is_found() -> None:
    pool = PagePool(2, 4)
    pool._free.pop()
    with pytest.raises(PageLeak, match="free 1 \\+ used 0 \\+ cached 0 != total 2"):
        pool.check()


def test_a_page_that_would_outlive_the_one_before_it_is_found() -> None:
    pool = PagePool(2, 1)
    pages = pool.take(2)
    put(pool, pages[1], (2,), put(pool, pages[0], (1,)))
    pool.drop([pages[0]])
    with pytest.raises(PageLeak, match=f"page {pages[1]} is used, but not page {pages[0]}"):
        pool.check()
    pool.drop([pages[1]])
    with pytest.raises(PageLeak, match=f"page {pages[1]} would outlive"):
        pool.check()
