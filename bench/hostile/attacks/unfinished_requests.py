"""Requests of 16 MiB that stay one byte short; places for unfinished requests end it."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from bench.hostile.http2 import Connection, connected
from bench.hostile.target import Target

COUNT = 64
SHORT = 48

_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_HOLD_S: Final = 15.0
_PATHS: Final = ("/storenode.v1.Store/Publish", "/storenode.v1.Store/Query")


async def attack(target: Target, _rng: random.Random, count: int) -> str:
    """Attack and say how much the node took."""
    async with connected(target.address) as connection:
        sent = await asyncio.gather(
            *(_one(connection, _PATHS[number % 2]) for number in range(count))
        )
        await asyncio.sleep(_HOLD_S)
        taken = sum(sent) / 1024**2
        return f"the node took {taken:,.0f} MiB of {count} requests, and ended {connection.ended}"


async def _one(connection: Connection, path: str) -> int:
    stream = connection.open(path)
    return await connection.send_zeros(stream, _MESSAGE_BYTES, _MESSAGE_BYTES - 1)
