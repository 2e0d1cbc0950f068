"""Attacks on the HTTP listener by requests that cost far more than their bytes."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from itertools import product
from string import ascii_lowercase
from typing import Final

from chaos.attacks.catalog import Target

_CHUNKS: Final = b"1\r\nx\r\n" * 2_000


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
