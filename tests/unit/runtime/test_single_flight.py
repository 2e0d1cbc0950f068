"""However many ask, a thing is read once; and what cannot be read now is shown as it was."""

from __future__ import annotations

import asyncio

from store.domain.ports import StoreUnavailableError
from store.runtime.tasks import SingleFlightCache

PATIENCE_S = 60.0
FOREVER_S = 1e9


async def test_a_hundred_who_ask_at_once_share_one_read() -> None:
    reads = 0
    go = asyncio.Event()

    async def read() -> int:
        nonlocal reads
        reads += 1
        await go.wait()
        return reads

    kept = SingleFlightCache("number", read, FOREVER_S)
    asking = [asyncio.create_task(kept.get(PATIENCE_S)) for _ in range(100)]
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(*asking) == [1] * 100
    assert await kept.get(PATIENCE_S) == 1
    assert reads == 1


async def test_what_is_old_is_read_again() -> None:
    numbers = iter(range(1_000_000))

    async def read() -> int:
        return next(numbers)

    kept = SingleFlightCache("number", read, 0.0)
    first = await kept.get(PATIENCE_S)
    assert first == 0
    async with asyncio.timeout(PATIENCE_S):
        while await kept.get(PATIENCE_S) == first:
            pass


async def test_who_has_no_patience_gets_the_last_result_and_the_read_goes_on() -> None:
    go = asyncio.Event()

    async def read() -> str:
        await go.wait()
        return "read"

    kept = SingleFlightCache("word", read, FOREVER_S)
    assert await kept.get(0.0) is None
    go.set()
    assert await kept.get(PATIENCE_S) == "read"
    assert kept.age_s is not None
    await kept.stop()


async def test_a_database_that_is_away_leaves_the_result_as_it_was() -> None:
    away = False

    async def read() -> str:
        if away:
            raise StoreUnavailableError("away")
        return "read"

    kept = SingleFlightCache("word", read, 0.0)
    assert await kept.get(PATIENCE_S) == "read"
    away = True
    for _ in range(3):
        assert await kept.get(PATIENCE_S) == "read"


async def test_stopping_ends_the_read() -> None:
    kept = SingleFlightCache("nothing", asyncio.Event().wait, 0.0)
    assert await kept.get(0.0) is None
    await kept.stop()
    assert await kept.get(0.0) is None
    await kept.stop()
