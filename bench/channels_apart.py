"""The process of one way of `bench.channels`, without anything else: WAY NODE FOLDER COUNT."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import psutil

from storenode.sds.aio.channel import Channel
from storenode.sds.aio.many.channels import Channels

SILENCE_S: Final = 5.0


@asynccontextmanager
async def together(listen: str, folder: Path, count: int) -> AsyncIterator[Sequence[Channel]]:
    """Channels that share what they can."""
    async with Channels.open(listen) as channels:
        names = [f"room-{number}" for number in range(count)]
        yield [await channels.join(name, "a", state=folder / name) for name in names]


@asynccontextmanager
async def alone(listen: str, folder: Path, count: int) -> AsyncIterator[Sequence[Channel]]:
    """Channels that share nothing."""
    async with AsyncExitStack() as stack:
        names = [f"room-{number}" for number in range(count)]
        yield [
            await stack.enter_async_context(Channel.join(listen, name, "a", state=folder / name))
            for name in names
        ]


async def measure(way: str, listen: str, folder: Path, count: int) -> dict[str, float]:
    """What the channels of this process cost, beyond what it had before."""
    process = psutil.Process()
    before_bytes = process.memory_info().rss
    before_s = time.process_time()
    async with {"together": together, "alone": alone}[way](listen, folder, count) as channels:
        for channel in channels:
            await channel.wait_for(lambda status: status.synced)
        joined_s = time.process_time() - before_s
        for channel in channels:
            await channel.send(b"a line of chat")
        for channel in channels:
            await channel.wait_for(lambda status: not status.unpublished)
        silent_s = time.process_time()
        await asyncio.sleep(SILENCE_S)
        return {
            "channels": count,
            "process_mb": process.memory_info().rss / 1e6,
            "kb_per_channel": (process.memory_info().rss - before_bytes) / count / 1e3,
            "threads": process.num_threads(),
            "descriptors": process.num_fds(),
            "join_cpu_ms": joined_s / count * 1e3,
            "silent_cpu_percent": (time.process_time() - silent_s) / SILENCE_S * 100,
        }


if __name__ == "__main__":
    _, chosen, address, directory, number = sys.argv
    found = asyncio.run(measure(chosen, address, Path(directory), int(number)))
    sys.stdout.write(json.dumps(found))
