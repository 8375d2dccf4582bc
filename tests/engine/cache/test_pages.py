"""The pool's books balance, whatever is done to it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cache.pages import PageLeak, PagePool, PagesExhausted


def test_pages_go_from_free_to_used_to_cached_and_back() -> None:
    pool = PagePool(3, 4)
    kept, lost = pool.take(2)
    pool.publish(kept, b"content")
    pool.drop([kept, lost])
    assert (pool.free, pool.used, pool.cached) == (2, 0, 1)
    assert pool.share(b"content") == kept
    pool.drop([kept])
    assert sorted(pool.take(3)) == [0, 1, 2]
    assert pool.share(b"content") is None


def test_a_request_for_too_many_pages_changes_nothing() -> None:
    pool = PagePool(3, 4)
    pool.publish(pool.take(1)[0], b"content")
    with pytest.raises(PagesExhausted):
        pool.take(3)
    assert (pool.free, pool.used, pool.cached) == (2, 1, 0)


def test_the_least_recently_used_content_is_evicted_first_and_suffixes_before_prefixes() -> None:
    pool = PagePool(4, 4)
    pages = pool.take(4)
    for page, name in zip(pages, [b"a", b"b", b"c", b"d"], strict=True):
        pool.publish(page, name)
    pool.drop(pages[:2])  # a then b: b is evicted first
    pool.drop(pages[2:])
    pool.drop([pool.share(b"b")])  # used again: now the youngest
    pool.take(3)
    assert [pool.share(name) for name in (b"a", b"b", b"c", b"d")] == [None, pages[1], None, None]


def test_a_page_shared_by_two_is_used_until_both_have_dropped_it() -> None:
    pool = PagePool(2, 4)
    (page,) = pool.take(1)
    pool.publish(page, b"x")
    assert pool.share(b"x") == page
    pool.drop([page])
    assert pool.used == 1
    pool.drop([page])
    assert (pool.used, pool.cached) == (0, 1)


def test_a_leak_is_found() -> None:
    pool = PagePool(2, 4)
    pool._free.pop()
    with pytest.raises(PageLeak, match="free 1 \\+ used 0 \\+ cached 0 != total 2"):
        pool.check()


class PoolLife(RuleBasedStateMachine):
    """Holders come, share, publish and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(8, 4)
        self.holders: list[list[int]] = []

    @rule(count=st.integers(0, 5))
    def take(self, count: int) -> None:
        if count <= self.pool.available:
            self.holders.append(self.pool.take(count))
        else:
            with pytest.raises(PagesExhausted):
                self.pool.take(count)

    @rule(digest=st.sampled_from([b"a", b"b", b"c"]))
    def share(self, digest: bytes) -> None:
        page = self.pool.share(digest)
        if page is not None:
            self.holders.append([page])

    @precondition(lambda self: any(self.holders))
    @rule(data=st.data(), digest=st.sampled_from([b"a", b"b", b"c"]))
    def publish(self, data: st.DataObject, digest: bytes) -> None:
        page = data.draw(st.sampled_from([page for held in self.holders for page in held]))
        self.pool.publish(page, digest)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.drop(self.holders.pop(index))

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        assert self.pool.free + self.pool.used + self.pool.cached == 8
        assert {page for held in self.holders for page in held} == set(self.pool._users)


PoolLife.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolLife = PoolLife.TestCase
