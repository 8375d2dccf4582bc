"""Texts come, share, grow, fork, go and return; pool, tree and slots agree after every step."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cache.page_table import PageTable
from engine.cache.pages import PagePool, PagesExhausted
from engine.cache.prefix_tree import PrefixTree

PAGES, SIZE = 10, 4
few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=14)
tenants = st.sampled_from("ab")


def test_the_child_that_agrees_longest_is_found() -> None:
    tree = PrefixTree(4)
    root = tree.insert("t", None, 0, (1, 2, 3, 4))
    tree.insert("t", root, 1, (5, 6))
    tree.insert("t", root, 2, (5, 6, 7, 8))
    found = tree.match("t", (1, 2, 3, 4, 5, 6, 7, 9))
    assert ([node.page for node in found.nodes], found.shared) == ([0], 3)
    assert found.partial is not None
    assert found.partial.page == 2


def test_what_is_known_already_is_not_kept_twice() -> None:
    tree = PrefixTree(4)
    full = tree.insert("t", None, 0, (1, 2, 3, 4))
    assert tree.insert("t", None, 1, (1, 2)) is full
    partial = tree.insert("t", None, 2, (1, 9))
    other = tree.insert("t", None, 3, (1, 9, 9, 9))
    assert tree.extend(partial, (1, 9, 9)) is other
    assert sorted(page for page in range(4) if page in tree) == [0, 3]
    assert list(tree.faults()) == []


def test_a_tenant_without_pages_leaves_nothing_behind() -> None:
    tree = PrefixTree(4)
    tree.insert("t", None, 0, (1,))
    tree.remove(0)
    assert not tree._roots
    assert not len(tree)


class Reuse(RuleBasedStateMachine):
    """A storage of tokens, so that a slot that holds another's key is found at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, SIZE)
        self.keys = np.full(PAGES * SIZE, -1)
        self.live: list[tuple[PageTable, list[int]]] = []
        self.gone: list[tuple[str, list[int]]] = []

    @rule(tenant=tenants, tokens=few_tokens)
    def begin(self, tenant: str, tokens: list[int]) -> None:
        table = PageTable(self.pool, tenant)
        table.adopt(tokens)
        try:
            table.reserve(len(tokens))
        except PagesExhausted:
            table.release()
            return
        copies = table.copies()
        if copies:
            source, target = np.array(copies).T
            self.keys[target] = self.keys[source]
        adopted = table.adopted
        assert adopted < len(tokens)
        assert self.keys[table.slots(0, adopted)].tolist() == tagged(tenant, tokens[:adopted])
        self.keys[table.slots(adopted, len(tokens))] = tagged(tenant, tokens)[adopted:]
        table.publish(tokens, len(tokens))
        self.live.append((table, tokens))

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), more=few_tokens)
    def come_back(self, data: st.DataObject, more: list[int]) -> None:
        tenant, tokens = data.draw(st.sampled_from(self.gone))
        self.begin(tenant, [*tokens, *more][:20])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=few_tokens, partial=st.booleans())
    def grow(self, data: st.DataObject, more: list[int], partial: bool) -> None:
        table, tokens = data.draw(st.sampled_from(self.live))
        end = len(tokens) + len(more)
        try:
            table.reserve(end)
        except PagesExhausted:
            return
        self.keys[table.slots(len(tokens), end)] = tagged(table._tenant_id, more)
        tokens += more
        table.publish(tokens, end, partial=partial)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), partial=st.booleans())
    def end(self, data: st.DataObject, partial: bool) -> None:
        table, tokens = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        table.publish(tokens, len(tokens), partial=partial)
        table.release()
        self.gone.append((table._tenant_id, tokens))

    @rule(count=st.integers(1, PAGES))
    def press(self, count: int) -> None:
        """Somebody takes what room there is, and writes into it."""
        if count <= self.pool.available:
            pages = self.pool.take(count)
            self.keys.reshape(PAGES, SIZE)[pages] = -7
            self.pool.drop(pages)

    @invariant()
    def everything_agrees(self) -> None:
        self.pool.check()
        held = {page for table, _ in self.live for page in table._pages}
        assert held == set(self.pool._users)
        for table, tokens in self.live:
            found = self.keys[table.slots(0, len(tokens))].tolist()
            assert found == tagged(table._tenant_id, tokens)


def tagged(tenant: str, tokens: list[int]) -> list[int]:
    """What is stored for tokens: not the same for two tenants."""
    return [token + 10 * ord(tenant) for token in tokens]


Reuse.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestReuse = Reuse.TestCase
