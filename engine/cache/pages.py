"""Who owns which page of the key-value storage: plain integers, no tensors.

A page is a run of `page_size` slots. It is *free*, *used* (by one request or, when its content is
published, by several), or *cached*: published, used by nobody, and taken back when space is
needed, the least recently used first. Always: free + used + cached == total.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PagesExhausted(Exception):
    """Not enough free and cached pages; nothing was taken."""


class PageLeak(RuntimeError):
    """The pool's books do not balance: a defect of the engine."""


class PagePool:
    """A fixed number of pages with reference counts. Not thread-safe."""

    def __init__(self, page_count: int, page_size: int) -> None:
        self.page_count = page_count
        self.page_size = page_size
        self._free = list(range(page_count - 1, -1, -1))
        self._users: dict[int, int] = {}  # page -> how many hold it, at least 1
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._page_of: dict[bytes, int] = {}  # content digest -> published page
        self._digest_of: dict[int, bytes] = {}

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
            del self._page_of[self._digest_of.pop(page)]
            self._free.append(page)
        pages = [self._free.pop() for _ in range(count)]
        self._users.update(dict.fromkeys(pages, 1))
        return pages

    def share(self, digest: bytes) -> int | None:
        """Hand out the page published under `digest` to one more holder; null if there is none."""
        page = self._page_of.get(digest)
        if page is not None:
            self._cached.pop(page, None)
            self._users[page] = self._users.get(page, 0) + 1
        return page

    def publish(self, page: int, digest: bytes) -> None:
        """Offer a held page's content to others. It must not be written again.

        Does nothing where the same content is already published: the copy stays private.
        """
        if digest not in self._page_of and page not in self._digest_of:
            self._page_of[digest] = page
            self._digest_of[page] = digest

    def drop(self, pages: Sequence[int]) -> None:
        """Give up one hold of each page, given in logical order.

        Last pages age first, so that a prefix outlives what follows it.
        """
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page] == 0:
                del self._users[page]
                if page in self._digest_of:
                    self._cached[page] = None
                else:
                    self._free.append(page)

    def check(self) -> None:
        """Raise PageLeak unless every page is in exactly one state and digests match pages."""
        owned = [*self._free, *self._users, *self._cached]
        if sorted(owned) != list(range(self.page_count)):
            raise PageLeak(
                f"free {self.free} + used {self.used} + cached {self.cached}"
                f" != total {self.page_count}, or a page is in two states"
            )
        if {page: digest for digest, page in self._page_of.items()} != self._digest_of:
            raise PageLeak("published digests and pages differ")
        if not set(self._cached) <= set(self._digest_of):
            raise PageLeak("a cached page has no digest to be found by")
