"""Nobody's orders wait for those of another tenant, however long they take to read."""

from __future__ import annotations

import asyncio
import threading

from api.inference.turns import THREADS, Turns


def test_a_tenants_orders_are_read_one_by_one_and_others_go_past_them() -> None:
    gate, reading, most = threading.Event(), 0, 0
    lock = threading.Lock()

    def slow() -> str:
        nonlocal reading, most
        with lock:
            reading += 1
            most = max(most, reading)
        gate.wait(20)
        with lock:
            reading -= 1
        return "slow"

    async def world() -> None:
        turns = Turns()
        greedy = [asyncio.create_task(turns.read("greedy", slow)) for _ in range(2 * THREADS)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(turns.read("other", lambda: "quick"), 20) == "quick"
        left = asyncio.create_task(turns.read("greedy", lambda: "left"))
        await asyncio.sleep(0)
        left.cancel()
        gate.set()
        assert await asyncio.wait_for(asyncio.gather(*greedy), 20) == ["slow"] * 2 * THREADS

    asyncio.run(world())
    assert most == 1
