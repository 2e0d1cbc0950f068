"""Attacks by connections that stay open and send little or nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Final

from chaos.attacks.http2 import connected
from chaos.attacks.registry import Target, attack

_HOLD_S: Final = 20.0
_PROBES: Final = 20
_PAUSE_S: Final = 0.25


@attack(count=10_000, short=2_000)
async def idle_connections(target: Target, _rng: random.Random, count: int) -> str:
    """Open connections that send nothing, or make no call; a limit and a deadline end them."""
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


@attack(count=64, short=64)
async def half_sent_probes(target: Target, _rng: random.Random, count: int) -> str:
    """Send probes that never complete; the oldest give way to complete ones for /healthz."""
    host, _, port = target.metrics_address.rpartition(":")
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\n")
        writers.append(writer)
    answers: Counter[str] = Counter()
    slowest_s = 0.0
    for _ in range(_PROBES):
        began_s = time.monotonic()
        answers[await _probe(host, int(port))] += 1
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        await asyncio.sleep(_PAUSE_S)
    for writer in writers:
        writer.close()
    shown = ", ".join(f"{number} with {code}" for code, number in answers.items())
    return f"{_PROBES} probes of /healthz were answered {shown}, the slowest in {slowest_s:.2f} s"


async def _read(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(1024):
            pass


async def _probe(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        line = await asyncio.wait_for(reader.readline(), 10.0)
    except (ConnectionError, TimeoutError):
        return "nothing"
    finally:
        writer.close()
    return line.decode("ascii", "replace").split(" ")[1] if line else "nothing"
