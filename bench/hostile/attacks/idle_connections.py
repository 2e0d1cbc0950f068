"""Connections that say nothing, or greet and make no call; their number and a deadline end it."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from typing import Final

from bench.hostile.http2 import connected
from bench.hostile.target import Target

COUNT = 10_000
SHORT = 2_000

_HOLD_S: Final = 20.0


async def attack(target: Target, _rng: random.Random, count: int) -> str:
    """Attack and say how many connections the node has closed."""
    host, _, port = target.address.rpartition(":")
    writers: list[asyncio.StreamWriter] = []
    ends: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        greeted = []
        with suppress(OSError):
            for number in range(count):
                if number % 10 == 0:
                    greeted.append(await stack.enter_async_context(connected(target.address)))
                    continue
                reader, writer = await asyncio.open_connection(host, int(port))
                writers.append(writer)
                ends.append(asyncio.create_task(_read(reader)))
        await asyncio.sleep(_HOLD_S)
        closed = sum(each.done() for each in ends) + sum(each.lost.is_set() for each in greeted)
        for end, writer in zip(ends, writers, strict=True):
            end.cancel()
            writer.close()
    made = len(writers) + len(greeted)
    return f"of {made} connections that could be made the node has closed {closed}"


async def _read(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(1024):
            pass
