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
        said_last = stream.settled() if whole else anext(stream.items(60.0))
        with pytest.raises(NotSettled) as said:
            await said_last
        assert said.value.request_id == "a.1"

    asyncio.run(wait(whole=True))
    asyncio.run(wait(whole=False))


def test_whoever_waits_for_what_the_gateway_ends_is_told_so() -> None:
    async def wait() -> None:
        delivery = Delivery()
        stream = delivery.open(["a", "a.1"], asyncio.get_running_loop(), shows_blocks=False)
        await asyncio.to_thread(delivery.stop, ["a", "a.1"])
        with pytest.raises(NotSettled, match="is being stopped"):
            await stream.settled()

    asyncio.run(wait())
