"""Streams of publishing whose first request stays one byte short; the budget of them ends it."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from bench.hostile.http2 import Connection, connected
from bench.hostile.target import Target

COUNT = 64
SHORT = 32

_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_CONNECTIONS: Final = 4
_HOLD_S: Final = 10.0
_PATH: Final = "/storenode.v1.Store/PublishStream"


async def attack(target: Target, _rng: random.Random, count: int) -> str:
    """Attack and say how much the node took."""
    told = await asyncio.gather(
        *(_connection(target, count // _CONNECTIONS) for _ in range(_CONNECTIONS))
    )
    taken = sum(sent for sent, _ in told) / 1024**2
    ended = sum(number for _, number in told)
    return f"the node took {taken:,.0f} MiB of {count} requests, and ended {ended}"


async def _connection(target: Target, count: int) -> tuple[int, int]:
    async with connected(target.address) as connection:
        sent = await asyncio.gather(*(_one(connection) for _ in range(count)))
        await asyncio.sleep(_HOLD_S)
        return sum(sent), connection.ended


async def _one(connection: Connection) -> int:
    stream = connection.open(_PATH)
    return await connection.send_zeros(stream, _MESSAGE_BYTES, _MESSAGE_BYTES - 1)
