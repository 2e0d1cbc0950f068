"""A participant as a program of its own: ``python -m tests.support.participant``.

It sends messages, waits until its log has a number of them, and prints the log's
digest. Every step is a line of JSON, printed when it is done.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

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


async def digest(channel: Channel) -> tuple[int, str]:
    """Return how long the log is, and the hash of its IDs in order."""
    names, found = hashlib.sha256(), 0
    before = None
    pages = []
    while page := await channel.log(1_000, before=before):
        pages.append(page)
        before = page[0].key
    for page in reversed(pages):
        for message in page:
            names.update(message.message_id.encode() + b"\n" + message.content)
            found += 1
    return found, names.hexdigest()


def tell(**what: object) -> None:
    """Print a line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def run(given: argparse.Namespace) -> None:
    """Run the participant of the command line."""
    rng = Random(given.name)
    async with Channel.join(
        given.nodes.split(","),
        given.channel,
        given.name,
        state=given.state,
        config=config_of(given.channel, given.name),
    ) as channel:
        tell(joined=given.name)
        for number in range(given.say):
            content = f"{given.name} says {number} {rng.random()}".encode()
            tell(said=await channel.send(content))
            await asyncio.sleep(rng.uniform(0, given.pace))
        if given.until:
            await until(channel, given.until)
            length, found = await digest(channel)
            tell(length=length, digest=found)
            # Others may still need what only this one would say again.
            await asyncio.to_thread(sys.stdin.read)


async def until(channel: Channel, length: int) -> None:
    """Wait until the log has so many messages, and nothing is missing."""
    found = 0
    async for _ in channel.messages():
        found += 1
        if found >= length:
            break
    await channel.wait_for(lambda status: status.synced)


def launch(
    nodes: Sequence[str], channel: str, name: str, *more: str, state: Path | None = None
) -> subprocess.Popen[str]:
    """Start one; its standard input ends it once it has printed its digest."""
    kept = [] if state is None else ["--state", str(state)]
    command = [sys.executable, "-m", "tests.support.participant"]
    return subprocess.Popen(
        [*command, "--nodes", ",".join(nodes), "--channel", channel, "--name", name, *kept, *more],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def launched(processes: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
    """End them, whatever happens."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--channel", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--state")
    parser.add_argument("--say", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--until", type=int, default=0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
