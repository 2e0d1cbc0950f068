"""Attacks by calls of which something is missing, by idle connections, and by costly requests."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product
from string import ascii_lowercase
from typing import Any, Final

import grpc

from chaos.attacks.catalog import Target
from chaos.attacks.http2 import MESSAGE_HEAD, Connection, connected

STORE: Final = "/storenode.v1.Store/"
_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_AT_ONCE: Final = 200
_DEADLINE_S: Final = 60.0
_IDLE_S: Final = 20.0
_CHUNKS: Final = b"1\r\nx\r\n" * 2_000


class Sent(Enum):
    """The part of a request that a call sends."""

    NOTHING = auto()
    ALL_BUT_ONE_BYTE = auto()
    ALL = auto()
    ALL_AND_A_RESET = auto()


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of some methods in turn, held open for ``hold_s``.

    ``connections`` returns the number of connections for a number of calls.
    """

    methods: Sequence[str]
    sent: Sent
    connections: Callable[[int], int]
    hold_s: float

    async def run(self, target: Target, _rng: random.Random, count: int) -> str:
        """Make the calls, and describe how many of them the node ended."""
        async with AsyncExitStack() as stack:
            opening = [connected(target["listen"]) for _ in range(self.connections(count))]
            connections = [await stack.enter_async_context(each) for each in opening]
            taken: list[asyncio.Task[int]] = []
            for number in range(count):
                connection = connections[number % len(connections)]
                if connection.lost.is_set():
                    return f"the node closed a connection after {number:,} calls"
                path = STORE + self.methods[number % len(self.methods)]
                taken += self._call(connection, path)
                if number % _AT_ONCE == 0:
                    await asyncio.gather(*(each.drain() for each in connections))
                    await asyncio.sleep(0)
            taken_mib = sum(await asyncio.gather(*taken)) / 1024**2
            await asyncio.sleep(self.hold_s)
            ended = sum(each.ended for each in connections)
        return f"the node took {taken_mib:,.0f} MiB, and ended {ended} of {count} calls"

    def _call(self, connection: Connection, path: str) -> list[asyncio.Task[int]]:
        stream = connection.open(path)
        if self.sent is Sent.ALL_BUT_ONE_BYTE:
            sending = connection.send_zeros(stream, _MESSAGE_BYTES, _MESSAGE_BYTES - 1)
            return [asyncio.create_task(sending)]
        if self.sent is not Sent.NOTHING:
            connection.send(stream, MESSAGE_HEAD.pack(False, 0), last=True)
        if self.sent is Sent.ALL_AND_A_RESET:
            connection.reset(stream)
        return []


UNFINISHED_REQUESTS: Final = Calls(
    ("Publish", "Query"), Sent.ALL_BUT_ONE_BYTE, lambda _: 1, hold_s=15.0
)
"""Requests of 16 MiB; the limit of the bytes of incomplete requests ends them."""

UNFINISHED_STREAMS: Final = Calls(
    ("PublishStream",), Sent.ALL_BUT_ONE_BYTE, lambda _: 4, hold_s=10.0
)
"""Publish streams; the budget of their first requests ends them."""

SILENT_CALLS: Final = Calls(
    ("Publish", "Query", "Scan", "Follow", "PublishStream"),
    Sent.NOTHING,
    lambda count: -(-count // 3_000),
    hold_s=20.0,
)
"""The limit of streams per connection and a deadline end them."""

CROWDED_CALLS: Final = Calls(("Query",), Sent.ALL, lambda _: 200, hold_s=20.0)
"""More queries than a node serves in seconds: it serves connections in turn and refuses none."""

RAPID_RESETS: Final = Calls(("Query",), Sent.ALL_AND_A_RESET, lambda _: 1, hold_s=0.0)
"""Calls that are reset at once (CVE-2023-44487); the limit of streams ends them."""


async def compressed_requests(target: Target, _rng: random.Random, count: int) -> str:
    """Send requests of 16 KB that unpack to 16 MiB; the node refuses them before unpacking."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target["listen"], options=options) as channel:
        publish: Any = channel.unary_unary(STORE + "Publish", None, None)
        request = bytes(_MESSAGE_BYTES - 64)

        async def call() -> str:
            made = publish(request, timeout=_DEADLINE_S, compression=grpc.Compression.Gzip)
            return str((await made.code()).name)

        codes = Counter(await asyncio.gather(*(call() for _ in range(count))))
    return "; ".join(f"{number} of {count} ended {code}" for code, number in codes.items())


async def idle_connections(target: Target, _rng: random.Random, count: int) -> str:
    """Open connections that send nothing, or make no call; a limit and a deadline end them."""
    async with AsyncExitStack() as stack:
        greeted, ends = [], []
        with suppress(OSError):
            for number in range(count):
                if number % 10 == 0:
                    greeted.append(await stack.enter_async_context(connected(target["listen"])))
                    continue
                reader, writer = await _connect(target["listen"])
                stack.callback(writer.close)
                ends.append(asyncio.create_task(_read_to_end(reader)))
                stack.callback(ends[-1].cancel)
        await asyncio.sleep(_IDLE_S)
        closed = sum(each.done() for each in ends) + sum(each.lost.is_set() for each in greeted)
        made = len(ends) + len(greeted)
    return f"of {made} connections that could be made the node has closed {closed}"


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(1024):
            pass


async def http_parameters(target: Target, _rng: random.Random, count: int) -> str:
    """Send requests with 15,500 parameters each, in a URL of 62 kB, one after the other."""
    names = ("".join(letters) for letters in product(ascii_lowercase, repeat=3))
    query = "&".join(name for name, _ in zip(names, range(15_500), strict=False))
    head = f"GET /api/v1/messages?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    began_s = time.monotonic()
    for _ in range(count):
        reader, writer = await _connect(target["http"])
        writer.write(head.encode())
        await reader.read()
        writer.close()
    return f"{count * len(head):,} bytes were answered in {time.monotonic() - began_s:.1f} s"


async def http_chunks(target: Target, _rng: random.Random, count: int) -> str:
    """Send bodies in chunks of one byte for as many seconds."""
    head = (
        b"POST /api/v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    sent = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(count):
            while True:
                reader, writer = await _connect(target["http"])
                answered = asyncio.create_task(reader.read(1))
                writer.write(head)
                with suppress(ConnectionError):
                    while not answered.done():
                        writer.write(_CHUNKS)
                        await writer.drain()
                        sent += len(_CHUNKS)
                answered.cancel()
                writer.close()
    return f"{sent:,} bytes were sent"


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))
