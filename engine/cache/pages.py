"""Who owns which page of the key-value storage: plain integers, no tensors.

A page is a run of `page_size` slots. It is *free*, *used* (by one request or, when its content is
in the prefix tree, by several), or *cached*: in the tree, used by nobody, and taken back when
space is needed, the least recently used leaf first. Always: free + used + cached == total.

Whoever holds a page of the tree holds all pages before it, and gives up the last ones first. So
the page that was given up longest ago is always a leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from engine.cache.prefix_tree import PrefixTree


class PagesExhausted(Exception):
    """Not enough free and cached pages; nothing was taken."""


class PageLeak(RuntimeError):
    """The pool's books do not balance: a defect of the engine."""


class PagePool:
    """A fixed number of pages with reference counts. Not thread-safe."""

    def __init__(self, page_count: int, page_size: int) -> None:
        self.page_count = page_count
        self.page_size = page_size
        self.prefixes = PrefixTree(page_size)
        self.evictions = 0
        self._free = list(range(page_count - 1, -1, -1))
        self._users: dict[int, int] = {}  # page -> how many hold it, at least 1
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def free(self) -> int:
        """Pages with no content worth keeping."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages that some request holds."""
        return len(self._users)

    @property
    def cached(self) -> int:
        """Pages kept for their content alone."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Pages that `take` could hand out."""
        return len(self._free) + len(self._cached)

    def take(self, count: int) -> list[int]:
        """Hand out `count` pages to one holder, evicting cached ones as needed.

        Raises PagesExhausted, having changed nothing.
        """
        if count > self.available:
            raise PagesExhausted(f"{count} pages wanted, {self.available} available")
        while len(self._free) < count:
            page, _ = self._cached.popitem(last=False)
            self.prefixes.remove(page)
            self._free.append(page)
            self.evictions += 1
        pages = [self._free.pop() for _ in range(count)]
        self._users.update(dict.fromkeys(pages, 1))
        return pages

    def share(self, page: int) -> None:
        """Hand out a page of the tree to one more holder, who holds all pages before it."""
        self._cached.pop(page, None)
        self._users[page] = self._users.get(page, 0) + 1

    def touch(self, page: int) -> None:
        """Count a page as used just now. The caller holds all pages before it."""
        if page in self._cached:
            self._cached.move_to_end(page)

    def drop(self, pages: Sequence[int]) -> None:
        """Give up one hold of each page, given in logical order."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page] == 0:
                del self._users[page]
                if page in self.prefixes:
                    self._cached[page] = None
                else:
                    self._free.append(page)

    def check(self) -> None:
        """Raise PageLeak unless each page is in one state, and pool and tree agree on which."""
        owned = [*self._free, *self._users, *self._cached]
        if sorted(owned) != list(range(self.page_count)):
            raise PageLeak(
                f"free {self.free} + used {self.used} + cached {self.cached}"
                f" != total {self.page_count}, or a page is in two states"
            )
        for fault in self.prefixes.faults():
            raise PageLeak(fault)
        if any(page in self.prefixes for page in self._free):
            raise PageLeak("a free page is in the tree")
        if any(page not in self.prefixes for page in self._cached):
            raise PageLeak("a cached page is not in the tree")
        for page in self._users:
            before = self.prefixes.parent_of(page) if page in self.prefixes else None
            if before is not None and before not in self._users:
                raise PageLeak(f"page {page} is used, but not page {before} before it")
        passed: set[int] = set()
        for page in self._cached:
            passed.add(page)
            if self.prefixes.parent_of(page) in passed:
                raise PageLeak(f"page {page} would outlive the page before it")
