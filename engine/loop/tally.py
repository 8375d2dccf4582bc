"""Drafting totals, and the rate of the last few seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from engine.records import BlockRecord, DraftCounters, StepRecord

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
        self.counters = DraftCounters()
        self._window: deque[tuple[int, int, int]] = deque()  # (start_ns, end_ns, tokens)

    def take(self, record: StepRecord) -> None:
        """Add one step."""
        totals = counted(record.blocks)
        self.counters = added(self.counters, totals)
        self._window.append((record.start_ns, record.end_ns, totals.emitted_tokens))
        # The last step stays, however long it took.
        while record.end_ns - self._window[0][0] > _WINDOW_NS and len(self._window) > 1:
            self._window.popleft()

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens emitted per second over the last steps; null if they emitted nothing."""
        tokens = sum(count for _, _, count in self._window)
        if not tokens:
            return None
        elapsed_ns = self._window[-1][1] - self._window[0][0]
        return tokens * 1e9 / elapsed_ns if elapsed_ns else None
