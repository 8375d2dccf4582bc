"""What a stream's one reader is told, and when it is told to wait no longer."""

from __future__ import annotations

import asyncio

import pytest

from api.delivery import Delivery
from api.errors import NotSettled


def test_whoever_waits_for_an_end_that_cannot_be_settled_is_told_so() -> None:
    async def wait(whole: bool) -> None:
        delivery = Delivery()
        stream = delivery.open(["a", "a.1"], asyncio.get_running_loop(), shows_blocks=not whole)
        await asyncio.to_thread(delivery.defer, "a.1")
        with pytest.raises(NotSettled) as said:
            if whole:
                await stream.settled()
            else:
                async for _ in stream.items(60.0):
                    raise AssertionError("nothing else was delivered")
        assert said.value.request_id == "a.1"

    asyncio.run(wait(whole=True))
    asyncio.run(wait(whole=False))
