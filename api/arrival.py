"""How long a body may take to arrive: a client that never ends its request must not hold us."""

from __future__ import annotations

import asyncio

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import (
    ASGIApp,
    HTTPReceiveMessage,
    Receive,
    Scope,
    Send,
    WebSocketReceiveMessage,
)

from api.errors import BodyTimeout


class ArrivalDeadline(ASGIMiddleware):
    """Raises BodyTimeout where a body is waited for and not complete `wait_s` after its headers."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Pass the request on; what comes behind its body, a farewell, may take any time."""
        deadline = asyncio.get_running_loop().time() + self._wait_s
        complete = False

        async def receive_in_time() -> HTTPReceiveMessage | WebSocketReceiveMessage:
            nonlocal complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise BodyTimeout(
                    f"the body was not complete {self._wait_s:g} s after the headers"
                ) from None
            complete = not message.get("more_body", False)
            return message

        await next_app(scope, receive_in_time, send)
