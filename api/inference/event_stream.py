"""Server-sent events over one ASGI response, with the client's departure noticed at once.

Written on ASGI's `receive` and `send` rather than as a response generator, because a generator's
clean-up on disconnect is not reliably run, and a departure has to stop the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from litestar.types import Receive, Scope, Send

KEEPALIVE = b": keepalive\n\n"


def sse(event: str | None, data: bytes) -> bytes:
    """One event; `data` must hold no line break, which encoded JSON never does."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + data + b"\n\n"


class EventStream:
    """An ASGI response that sends chunks as they come.

    It calls `on_disconnect` if its client leaves before their end, and `on_stop` if the server
    wants to end before it, which must make the chunks come to an end.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        on_disconnect: Callable[[], Awaitable[None]],
        on_stop: Callable[[], Awaitable[None]],
        headers: dict[str, str],
    ) -> None:
        self._chunks = chunks
        self._on_disconnect = on_disconnect
        self._on_stop = on_stop
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the chunks end or the client goes; either way nothing is left running."""
        pump = asyncio.create_task(self._pump(send))
        watch = asyncio.create_task(disconnected(receive))
        finished = False
        try:
            try:
                await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await self._on_stop()
                await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
            finished = pump.done() and pump.exception() is None
        finally:
            for task in (pump, watch):
                task.cancel()
            await asyncio.gather(pump, watch, return_exceptions=True)
            if not finished:
                await asyncio.shield(self._on_disconnect())

    async def _pump(self, send: Send) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            **self._headers,
        }
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
            }
        )
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def disconnected(receive: Receive) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
