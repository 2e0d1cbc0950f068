"""The fair queue: who waits, who is served first, and what every call gives back."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from store.serving.failure import CallError
from store.serving.queue import FairQueue
from tests.support.polling import settle


def queue(limit: int = 10) -> FairQueue:
    return FairQueue(limit, "units")


def ask(of: FairQueue, connection: str, size: int) -> asyncio.Task[None]:
    return asyncio.create_task(of.acquire(connection, size))


async def test_the_lightest_connection_is_served_first() -> None:
    shared = queue()
    await shared.acquire("holder", 10)
    heavy = [ask(shared, "heavy", 5) for _ in range(2)]
    await settle()
    light = ask(shared, "light", 5)
    await settle()
    order: list[asyncio.Task[None]] = []
    for task in (*heavy, light):
        task.add_done_callback(order.append)
    for _ in range(3):
        shared.release("holder" if "holder" in shared.asked else "light", 5)
        await settle()
    assert order == [heavy[0], light, heavy[1]]


async def test_a_heavy_connection_waits_for_a_bounded_number_of_lighter_calls() -> None:
    shared = queue(1)
    await shared.acquire("holder", 1)
    heavy = [ask(shared, "heavy", 1) for _ in range(3)]
    holder = "holder"
    for number in range(10):
        await settle()
        light = ask(shared, f"light {number}", 1)
        await settle()
        shared.release(holder, 1)
        await settle()
        holder = f"light {number}" if light.done() else "heavy"
        if not light.done():
            light.cancel()
    assert all(task.done() for task in heavy)


async def test_one_owner_gets_half_and_all_get_the_whole() -> None:
    shared = queue()

    give_back = shared.take("a", 5)
    with pytest.raises(CallError, match="5 units on one client"):
        shared.take("a", 1)
    shared.take("b", 5)
    shared.take("c", 0)
    with pytest.raises(CallError, match="10 units on this node"):
        shared.take("c", 1)
    give_back()
    shared.release("b", 5)
    assert shared.used == 0
    await shared.acquire("a", 50)  # alone, what is larger than the whole passes


@pytest.mark.parametrize("seed", range(20))
async def test_every_unit_comes_back_however_calls_end(seed: int) -> None:
    rng = Random(seed)
    shared = queue()

    async def call(connection: str, size: int) -> None:
        await shared.acquire(connection, size)
        try:
            assert shared.used <= max(shared.limit, size)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        finally:
            shared.release(connection, size)

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(call(rng.choice("abc"), rng.randrange(1, 13))))
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert shared.used == 0
    assert not shared.asked
    assert not [each for each in shared.waiting if not each.turn.done()]
