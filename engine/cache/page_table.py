"""Where one request's tokens lie: logical positions to slots, and the prefixes it shares.

Only full pages of committed tokens are published, under a digest of the tenant and of every token
up to the page's end. A shared page is never written: its holder goes on in a page of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.cache.pages import PagePool


class PageTable:
    """The pages of one request, in logical order."""

    def __init__(self, pool: PagePool, tenant_id: str) -> None:
        self._pool = pool
        self._pages: list[int] = []
        self._slots: NDArray[np.int64] = np.empty(0, np.int64)
        self._digests = [hashlib.sha256(tenant_id.encode()).digest()]  # of 0, 1, ... pages
        self._published = 0  # leading pages that others may find

    @property
    def capacity(self) -> int:
        """Positions that have a slot."""
        return len(self._pages) * self._pool.page_size

    def adopt(self, tokens: Sequence[int]) -> int:
        """Take hold of the published pages that begin `tokens`; returns how many tokens they hold.

        At least the last token is left to be computed, since its logits are needed. The table must
        be empty.
        """
        assert not self._pages
        size = self._pool.page_size
        for start in range(0, len(tokens) - size, size):
            page = self._pool.share(self._digest(start // size, tokens))
            if page is None:
                break
            self._append([page])
        self._published = len(self._pages)
        return self.capacity

    def pages_wanted(self, length: int) -> int:
        """Return how many more pages `length` positions need."""
        return max(0, -(-length // self._pool.page_size) - len(self._pages))

    def reserve(self, length: int) -> None:
        """Give the first `length` positions a slot each, or raise PagesExhausted."""
        wanted = self.pages_wanted(length)
        if wanted:
            self._append(self._pool.take(wanted))

    def trim(self, length: int) -> None:
        """Give back the pages beyond the first `length` positions."""
        keep = -(-length // self._pool.page_size)
        if keep < len(self._pages):
            self._pool.drop(self._pages[keep:])
            del self._pages[keep:]
            self._slots = self._slots[: self.capacity]

    def publish(self, tokens: Sequence[int], committed: int) -> None:
        """Publish the pages that the first `committed` tokens fill."""
        full = committed // self._pool.page_size
        for page in range(self._published, full):
            self._pool.publish(self._pages[page], self._digest(page, tokens))
        self._published = max(self._published, full)

    def slots(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the slots of positions start:stop, a view [stop - start] int64."""
        assert stop <= self.capacity
        return self._slots[start:stop]

    def release(self) -> None:
        """Give back everything; the table is empty again."""
        self._pool.drop(self._pages)
        self._pages = []
        self._slots = np.empty(0, np.int64)
        self._published = 0

    def _append(self, pages: list[int]) -> None:
        size = self._pool.page_size
        starts = np.array(pages, np.int64)[:, None] * size
        self._slots = np.concatenate([self._slots, (starts + np.arange(size)).ravel()])
        self._pages += pages

    def _digest(self, page: int, tokens: Sequence[int]) -> bytes:
        """Return the digest of everything up to the end of a page; all before it are known."""
        if page + 1 == len(self._digests):
            size = self._pool.page_size
            content = np.array(tokens[page * size : (page + 1) * size], np.int64).tobytes()
            self._digests.append(hashlib.sha256(self._digests[page] + content).digest())
        return self._digests[page + 1]
