"""A participant as a program: ``python -m tests.support.participant NODE CHANNEL NAME STATE``.

It sends messages until it is stopped, and prints the ID of each as a line.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from storenode.sds.aio.channel import Channel
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig

ROOT = Path(__file__).parents[2]
SHAPE = FilterShape(500, 0.01)


def config_of(channel_id: str, sender_id: str) -> ChannelConfig:
    """Return small filters, and resends and repair among participants before patience is lost."""
    return ChannelConfig(
        channel_id,
        sender_id,
        filter=SHAPE,
        resend_ms=2_000,
        resend_possible_ms=4_000,
        max_sends=100,
        sync_min_ms=1_000,
        sync_max_ms=2_000,
        repair=RepairConfig(500, 2_000),
    )


async def until(channel: Channel, length: int) -> None:
    """Wait until the log has so many messages, and nothing is missing."""
    found = 0
    async for _ in channel.messages():
        found += 1
        if found >= length:
            break
    await channel.wait_for(lambda status: status.synced)


@contextmanager
def sending(node: str, channel: str, name: str, state: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a participant that sends, and kill it at the end of the block."""
    command = [sys.executable, "-m", "tests.support.participant", node, channel, name, str(state)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def send(node: str, channel_id: str, name: str, state: str) -> None:
    """Send messages without end."""
    config = config_of(channel_id, name)
    async with Channel.join(node, channel_id, name, state=state, config=config) as channel:
        for number in count():
            sent_id = await channel.send(b"%d" % number)
            print(sent_id, flush=True)  # noqa: T201 - for the test


if __name__ == "__main__":
    asyncio.run(send(*sys.argv[1:]))
