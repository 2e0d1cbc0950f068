"""Calls without a message, over many connections; streams per connection and a deadline end it."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Final

from bench.hostile.http2 import connected
from bench.hostile.target import Target

COUNT = 30_000
SHORT = 6_000

_PER_CONNECTION: Final = 3_000
_HOLD_S: Final = 20.0
_PATHS: Final = ("Publish", "Query", "Scan", "Follow", "PublishStream")


async def attack(target: Target, _rng: random.Random, count: int) -> str:
    """Attack and say how many calls the node ended."""
    async with AsyncExitStack() as stack:
        connections = []
        for start in range(0, count, _PER_CONNECTION):
            connection = await stack.enter_async_context(connected(target.address))
            for number in range(min(_PER_CONNECTION, count - start)):
                method = _PATHS[number % len(_PATHS)]
                connection.open(f"/storenode.v1.Store/{method}")
            await connection.drain()
            connections.append(connection)
        await asyncio.sleep(_HOLD_S)
        return f"the node ended {sum(each.ended for each in connections)} of {count} calls"
