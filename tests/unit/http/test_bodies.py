"""Bodies that come in side by side: where there is no room, the oldest gives way."""

from __future__ import annotations

import asyncio

import pytest

from store.http.exchange import BodyBudget
from store.serving.failure import CallError, Code

LIMIT_BYTES = 100


async def reading(bodies: BodyBudget, *sizes: int, until: asyncio.Event | None = None) -> int:
    """Read a body in parts, then wait for an event as for a part that does not come."""
    async with bodies.receive() as body:
        for size in sizes:
            bodies.add(body, size)
        if until is not None:
            await until.wait()
        return body.size_bytes


async def test_the_oldest_gives_way_to_what_comes_now() -> None:
    bodies, done = BodyBudget(LIMIT_BYTES), asyncio.Event()
    slow = [asyncio.create_task(reading(bodies, 40, until=done)) for _ in range(2)]
    await asyncio.sleep(0)
    assert await reading(bodies, 30, 30) == 60
    with pytest.raises(CallError) as caught:
        await slow[0]
    assert (caught.value.code, caught.value.retry) == (Code.RESOURCE_EXHAUSTED, True)
    assert "100 bytes of requests that have not come in full" in caught.value.sentence
    done.set()
    assert await slow[1] == 40
    # Everything was given back.
    assert await reading(bodies, LIMIT_BYTES) == LIMIT_BYTES


async def test_one_alone_is_refused_beyond_the_limit() -> None:
    bodies = BodyBudget(LIMIT_BYTES)
    with pytest.raises(CallError):
        await reading(bodies, LIMIT_BYTES, 1)
    assert await reading(bodies, LIMIT_BYTES) == LIMIT_BYTES


async def test_a_caller_that_goes_leaves_nothing() -> None:
    bodies = BodyBudget(LIMIT_BYTES)
    task = asyncio.create_task(reading(bodies, LIMIT_BYTES, until=asyncio.Event()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await reading(bodies, LIMIT_BYTES) == LIMIT_BYTES
