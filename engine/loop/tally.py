"""Drafting totals, and the rate of the last few seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from engine.cache.experts import ExpertCache
from engine.cache.pages import PagePool
from engine.draft.shared import SharedDrafts
from engine.records import BlockRecord, CacheCounters, DraftCounters, StepRecord

_WINDOW_NS = 10_000_000_000


def counted(blocks: Iterable[BlockRecord]) -> DraftCounters:
    """Return the totals of some blocks, each block a step of its request."""
    blocks = list(blocks)
    return DraftCounters(
        steps=len(blocks),
        emitted_tokens=sum(len(block.token_ids) for block in blocks),
        drafted_nodes=sum(block.drafted_nodes for block in blocks),
        drafted_depth=sum(block.drafted_depth for block in blocks),
        verified_nodes=sum(block.verified_nodes for block in blocks),
        accepted_tokens=sum(block.accepted_tokens for block in blocks),
        cached_tokens=sum(block.cached_tokens for block in blocks),
    )


def added(one: DraftCounters, other: DraftCounters) -> DraftCounters:
    """Return the sum of two totals."""
    return DraftCounters(
        *(
            left + right
            for left, right in zip(
                msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True
            )
        )
    )


class Tally:
    """What a loop has emitted so far."""

    def __init__(self) -> None:
        self.counters = DraftCounters()  # of blocks that followed no other request's
        self.caches = CacheCounters()
        self._window: deque[tuple[int, int, int]] = deque()  # (start_ns, end_ns, tokens)
        self._window_tokens = 0

    def take(self, record: StepRecord) -> None:
        """Add one step."""
        blocks = record.blocks
        self.counters = added(
            self.counters, counted(block for block in blocks if not block.followed)
        )
        caches = self.caches
        self.caches = msgspec.structs.replace(
            caches,
            blocks=caches.blocks + len(blocks),
            cached_blocks=caches.cached_blocks + sum(block.cached_tokens > 0 for block in blocks),
            followed_blocks=caches.followed_blocks + sum(block.followed for block in blocks),
            cached_prompt_tokens=caches.cached_prompt_tokens
            + sum(block.cached_prompt_tokens for block in blocks),
        )
        emitted = sum(len(block.token_ids) for block in blocks)
        self._window.append((record.start_ns, record.end_ns, emitted))
        self._window_tokens += emitted
        # The last step stays, however long it took.
        while record.end_ns - self._window[0][0] > _WINDOW_NS and len(self._window) > 1:
            self._window_tokens -= self._window.popleft()[2]

    def begun(self, prompt_tokens: int) -> None:
        """Count a request that emits for the first time."""
        self.caches = msgspec.structs.replace(
            self.caches, prompt_tokens=self.caches.prompt_tokens + prompt_tokens
        )

    def caches_of(
        self, pool: PagePool, shared: SharedDrafts, experts: ExpertCache[Any] | None
    ) -> CacheCounters:
        """Return the counts of reuse, with those that the caches keep themselves."""
        return msgspec.structs.replace(
            self.caches,
            page_evictions=pool.evictions,
            draft_lookups=shared.lookups,
            draft_hits=shared.hits,
            draft_evictions=shared.evictions,
            experts=None if experts is None else experts.counters,
        )

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens emitted per second over the last steps; null if they emitted nothing."""
        if not self._window_tokens:
            return None
        elapsed_ns = self._window[-1][1] - self._window[0][0]
        return self._window_tokens * 1e9 / elapsed_ns if elapsed_ns else None
