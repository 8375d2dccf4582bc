"""Where one request's tokens lie: logical positions to slots, and the prefixes it shares.

Full pages of committed tokens are shared as they are. Of a page that agrees only in part, the keys
that agree are copied into a page of the request's own, so that a shared page is never written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.cache.pages import PagePool
from engine.cache.prefix_tree import Node

Slots = NDArray[np.int64]


class PageTable:
    """The pages of one request, in logical order."""

    def __init__(self, pool: PagePool, tenant_id: str) -> None:
        self._pool = pool
        self._tenant_id = tenant_id
        self._pages: list[int] = []
        self._slots: Slots = np.empty(0, np.int64)
        self._nodes: list[Node] = []  # of the leading pages that are in the tree
        self._donor, self._lent = -1, 0  # a page whose first keys are to be copied, and how many

    @property
    def capacity(self) -> int:
        """Positions that have a slot."""
        return len(self._pages) * self._pool.page_size

    @property
    def adopted(self) -> int:
        """Tokens found computed by `adopt`, those to be copied included."""
        return len(self._nodes) * self._pool.page_size + self._lent

    @property
    def lent(self) -> int:
        """How many of them are to be copied."""
        return self._lent

    def adopt(self, tokens: Sequence[int]) -> None:
        """Take hold of the full pages that begin `tokens`, and find what else can be copied.

        At least the last token is left to be computed, since its logits are needed. The table must
        be empty.
        """
        assert not self._pages
        found = self._pool.prefixes.match(self._tenant_id, tokens[:-1])
        for node in found.nodes:
            self._pool.share(node.page)
        self._append([node.page for node in found.nodes])
        self._nodes = list(found.nodes)
        self._donor, self._lent = -1, found.shared
        if found.partial is not None:
            self._donor = found.partial.page
            self._pool.touch(self._donor)

    def copies(self) -> list[tuple[int, int]]:
        """Return the slots to copy, from and to, so that all that was adopted lies in the table.

        Pages must have been reserved for it. All copies of a step are made in one move, before
        anything else is written: the donor may have been handed out again meanwhile.
        """
        start, donor = len(self._nodes) * self._pool.page_size, self._donor * self._pool.page_size
        own = self._slots[start : start + self._lent].tolist()
        return [(donor + at, slot) for at, slot in enumerate(own) if donor + at != slot]

    def begins(self, other: PageTable) -> bool:
        """Whether the pages of this table are the other's first ones."""
        return self._pages == other._pages[: len(self._pages)]

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

    def publish(self, tokens: Sequence[int], committed: int, *, partial: bool = False) -> None:
        """Put the pages that the first `committed` tokens fill into the tree.

        With `partial`, the page that they fill in part too. Where the tree knows the same tokens
        already, its page takes the place of the table's own full one: they hold the same bits.
        """
        size = self._pool.page_size
        while (begun := self._begun()) < committed // size:
            self._put(begun, tokens[begun * size : (begun + 1) * size])
        if partial and committed % size:
            self._put(begun, tokens[begun * size : committed])

    def slots(self, start: int, stop: int) -> Slots:
        """Return the slots of positions start:stop, a view [stop - start] int64."""
        assert stop <= self.capacity
        return self._slots[start:stop]

    def release(self) -> None:
        """Give back everything; the table is empty again."""
        self._pool.drop(self._pages)
        self._pages = []
        self._slots = np.empty(0, np.int64)
        self._nodes = []
        self._donor, self._lent = -1, 0

    def _begun(self) -> int:
        """Return how many leading pages are in the tree as full ones."""
        count = len(self._nodes)
        return count - (count > 0 and len(self._nodes[-1].tokens) < self._pool.page_size)

    def _put(self, index: int, tokens: Sequence[int]) -> None:
        """Put one page into the tree, the pages before it being there."""
        prefixes, page = self._pool.prefixes, self._pages[index]
        if index < len(self._nodes):
            node = prefixes.extend(self._nodes.pop(), tokens)
        else:
            parent = self._nodes[-1] if self._nodes else None
            node = prefixes.insert(self._tenant_id, parent, page, tokens)
        if node.page == page:
            self._nodes.append(node)
        elif len(tokens) == self._pool.page_size:
            self._pool.share(node.page)
            self._pool.drop([page])
            self._pages[index] = node.page
            start = index * self._pool.page_size
            self._slots[start : start + len(tokens)] = np.arange(len(tokens)) + (
                node.page * self._pool.page_size
            )
            self._nodes.append(node)

    def _append(self, pages: list[int]) -> None:
        size = self._pool.page_size
        starts = np.array(pages, np.int64)[:, None] * size
        self._slots = np.concatenate([self._slots, (starts + np.arange(size)).ravel()])
        self._pages += pages
