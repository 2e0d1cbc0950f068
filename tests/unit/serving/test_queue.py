"""The fair queue: who waits, who is served first, and what every call gives back."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from store.serving.failure import CallError, Code, busy
from store.serving.queue import CROWDED_TIMEOUT_S, REQUEST_TIMEOUT_S, FairQueue, RequestSlots
from tests.support.virtual_time import virtual_time


def queue(limit: int = 10, max_waiting: int | None = None) -> FairQueue:
    return FairQueue(
        limit, lambda limit, owner: busy(f"{limit} of {owner}"), max_waiting=max_waiting
    )


def ask(of: FairQueue, connection: str, size: int) -> asyncio.Task[None]:
    return asyncio.create_task(of.acquire(connection, size))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


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
        shared.release(5, "holder") if shared.asked["holder"] else shared.release(5, "light")
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
        shared.release(1, holder)
        await settle()
        holder = f"light {number}" if light.done() else "heavy"
        if not light.done():
            light.cancel()
    assert all(task.done() for task in heavy)


async def test_what_does_not_fit_is_refused_without_waiting() -> None:
    shared = queue()
    with shared.reserve(6):
        with pytest.raises(CallError) as refused, shared.reserve(5):
            pass
        assert (refused.value.code, refused.value.retry) == (Code.RESOURCE_EXHAUSTED, True)
        with shared.reserve(4):
            assert shared.free == 0
    assert shared.used == 0


async def test_no_call_overtakes_one_that_waits() -> None:
    shared = queue()
    await shared.acquire("a", 6)
    waiting = ask(shared, "b", 8)
    await settle()
    with pytest.raises(CallError), shared.reserve(1):
        pass
    shared.release(6, "a")
    await waiting
    assert shared.used == 8


async def test_one_that_is_larger_than_the_whole_passes_alone() -> None:
    shared = queue()
    await shared.acquire("a", 50)
    waiting = ask(shared, "b", 1)
    await settle()
    assert not waiting.done()
    shared.release(50, "a")
    await waiting


async def test_one_owner_gets_half_and_all_get_the_whole() -> None:
    shared = queue()

    with shared.reserve(5, "a"):
        with pytest.raises(CallError, match="5 of one client"), shared.reserve(1, "a"):
            pass
        with (
            shared.reserve(5, "b"),
            shared.reserve(0, "c"),
            pytest.raises(CallError, match="10 of this node"),
            shared.reserve(1, "c"),
        ):
            pass
    assert shared.used == 0


async def test_of_too_many_that_wait_the_heaviest_is_refused() -> None:
    shared = queue(1, max_waiting=3)
    await shared.acquire("holder", 1)
    crowd = [ask(shared, "crowd", 1) for _ in range(3)]
    await settle()
    alone = ask(shared, "alone", 1)
    await settle()
    assert [task.done() for task in crowd] == [False, False, True]
    assert isinstance(crowd[2].exception(), CallError)
    for task in (*crowd[:2], alone):
        task.cancel()
    await asyncio.gather(*crowd, alone, return_exceptions=True)
    shared.release(1, "holder")
    assert not shared.asked
    assert shared.used == 0


@pytest.mark.parametrize("seed", range(20))
async def test_every_unit_comes_back_however_calls_end(seed: int) -> None:
    rng = Random(seed)
    shared = queue(max_waiting=6)

    async def call(connection: str, size: int) -> None:
        await shared.acquire(connection, size)
        try:
            assert shared.used <= max(shared.limit, size)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        finally:
            shared.release(size, connection)

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


@virtual_time
async def test_a_request_keeps_its_slot_unless_others_wait() -> None:
    slots, loop = RequestSlots(1), asyncio.get_running_loop()
    came = asyncio.Event()

    async def receive(connection: str = "a", *, wait: bool = True) -> None:
        async with slots.slot(connection, wait=wait):
            await came.wait()

    alone = asyncio.create_task(receive())
    await asyncio.sleep(2 * CROWDED_TIMEOUT_S)
    assert not alone.done(), "no other call wants the slot"
    with pytest.raises(CallError, match="have not come in full is reached"):
        await receive(wait=False)
    waiting = asyncio.create_task(receive())
    with pytest.raises(CallError) as refused:
        await alone
    assert (refused.value.code, refused.value.retry) == (Code.RESOURCE_EXHAUSTED, True)
    began_s = loop.time()
    with pytest.raises(CallError) as refused:
        await waiting
    assert refused.value.code is Code.DEADLINE_EXCEEDED
    assert loop.time() - began_s == REQUEST_TIMEOUT_S
    # A small request needs no slot, and has its time all the same.
    async with slots.slot("a"), slots.slot("b", needed=False):
        assert slots.free == 0
    with pytest.raises(CallError, match="within 60 s"):
        async with slots.slot("b", needed=False):
            await asyncio.Event().wait()
    assert (slots.used, slots.asked) == (0, {})


async def test_slots_come_back_however_a_call_ends() -> None:
    slots = RequestSlots(1)

    async def receive() -> None:
        async with slots.slot("a"):
            await asyncio.Event().wait()

    for _ in range(3):
        holder, waiter = (asyncio.create_task(receive()) for _ in range(2))
        await asyncio.sleep(0)
        holder.cancel()
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(holder, waiter, return_exceptions=True)
    async with slots.slot("a", wait=False):
        assert slots.free == 0
    assert (slots.used, slots.asked) == (0, {})
