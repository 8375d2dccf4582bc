"""Whose order is read next: one at a time for each tenant, on threads that do nothing else.

Reading takes processor time that nobody has paid for: a long prompt has to be tokenised before it
can be refused for its length, and a new schema compiled. So what one tenant sends waits for what
it sent before, and keeps neither other tenants' orders nor anybody's other requests waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

THREADS = 4

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Used from the event loop alone."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="orders")
        self._waiting: WeakValueDictionary[str | None, asyncio.Lock] = WeakValueDictionary()

    async def read(
        self, tenant_id: str | None, reader: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call `reader` in the tenant's turn, and return what it returns; null is the operator."""
        turn = self._waiting.setdefault(tenant_id, asyncio.Lock())
        async with turn:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: reader(*args, **kwargs))
