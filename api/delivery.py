"""From the recorder's thread to whoever waits for a request: one stream per live order.

Only durable facts pass here, so what a client has seen can always be billed, and what is billed
could always have been seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from threading import Lock
from typing import TypeAlias

from api.errors import NotSettled
from metering.events import RequestSummary
from metering.protocols import CommittedBlock

Item: TypeAlias = CommittedBlock | RequestSummary | NotSettled


class Stream:
    """What the choices of one order deliver, each in order: blocks if wanted, then its summary.

    `shows_blocks`: blocks are wanted as they come, and not only the end. Read by one task.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, choices: int, *, shows_blocks: bool
    ) -> None:
        self.shows_blocks = shows_blocks
        self._loop = loop
        self._choices = choices
        self._queue: asyncio.Queue[Item] = asyncio.Queue()

    def put(self, items: Sequence[Item]) -> None:
        """Append from any thread; a loop that has closed meanwhile has no reader left."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._append, items)

    def _append(self, items: Sequence[Item]) -> None:
        for item in items:
            self._queue.put_nowait(item)

    async def items(self, quiet_s: float) -> AsyncIterator[CommittedBlock | RequestSummary | None]:
        """Yield what comes, a summary last; null wherever nothing came for `quiet_s`.

        Raises NotSettled.
        """
        item: CommittedBlock | RequestSummary | None
        unfinished = self._choices
        while unfinished:
            try:
                async with asyncio.timeout(quiet_s):
                    item = await self._next()
            except TimeoutError:
                item = None
            unfinished -= isinstance(item, RequestSummary)
            yield item

    async def settled(self) -> None:
        """Wait for the end of every choice, passing over any blocks. Raises NotSettled."""
        unfinished = self._choices
        while unfinished:
            unfinished -= isinstance(await self._next(), RequestSummary)

    async def _next(self) -> CommittedBlock | RequestSummary:
        item = await self._queue.get()
        if isinstance(item, NotSettled):
            raise item
        return item


class Delivery:
    """The open streams. Implements `metering.protocols.BlockSink`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._streams: dict[str, Stream] = {}

    def open(
        self,
        request_ids: Sequence[str],
        loop: asyncio.AbstractEventLoop,
        *,
        shows_blocks: bool,
    ) -> Stream:
        """Open the one stream of requests that are about to be submitted."""
        stream = Stream(loop, len(request_ids), shows_blocks=shows_blocks)
        with self._lock:
            self._streams.update(dict.fromkeys(request_ids, stream))
        return stream

    def close(self, request_ids: Sequence[str]) -> None:
        """Forget a stream whose reader has gone; later items are dropped."""
        with self._lock:
            for request_id in request_ids:
                self._streams.pop(request_id, None)

    def shows_blocks(self, request_id: str) -> bool:
        """Whether there is a stream whose reader wants blocks as they come."""
        with self._lock:
            stream = self._streams.get(request_id)
        return stream is not None and stream.shows_blocks

    def deliver(self, request_id: str, blocks: Sequence[CommittedBlock]) -> None:
        """Offer committed blocks to their stream, if it is open."""
        with self._lock:
            stream = self._streams.get(request_id)
        if stream is not None:
            stream.put(blocks)

    def finish(self, summary: RequestSummary) -> None:
        """Offer the settled summary and close the stream."""
        self._last(summary.request_id, summary)

    def defer(self, request_id: str) -> None:
        """Tell whoever waits that the request can't be settled for now, and close the stream."""
        self._last(request_id, NotSettled(request_id))

    def stop(self, request_ids: Sequence[str]) -> None:
        """Tell whoever waits for these that we end them, and close their stream."""
        for request_id in request_ids:
            self._last(request_id, NotSettled(request_id, stopping=True))

    def _last(self, request_id: str, item: Item) -> None:
        with self._lock:
            stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.put([item])
