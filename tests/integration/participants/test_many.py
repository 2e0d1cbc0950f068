"""Tests of many channels of one process share a connection, threads and open files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from storenode.sds.aio.channel import Channel, Channels
from storenode.sds.aio.state import StateTakenError
from tests.support.node import NodeProcess, running_node

PATIENCE_S = 90.0
CHANNELS = 220
OPEN_STATES = 8

Group = tuple[Channels, list[Channel]]


@pytest.fixture
def own_node(tmp_path: Path, new_store: Callable[[], str]) -> Iterator[NodeProcess]:
    """Return a node that a test may stop."""
    with running_node(tmp_path / "node", database_url=new_store()) as process:
        yield process


@asynccontextmanager
async def joined(
    node: NodeProcess, room: str, sender: str, count: int, folder: Path | None = None
) -> AsyncIterator[Group]:
    """Return channels of one sender that are synced."""
    async with (
        Channels.open(node.listen, open_states=OPEN_STATES) as channels,
        asyncio.timeout(PATIENCE_S),
    ):
        states = [None if folder is None else folder / f"{number}.db" for number in range(count)]
        made = await asyncio.gather(
            *(
                channels.join(f"{room}-{number}", sender, state=state)
                for number, state in enumerate(states)
            )
        )
        for channel in made:
            await channel.wait_for(lambda status: status.synced)
        yield channels, made


async def received(channel: Channel, count: int) -> list[bytes]:
    """Return the first messages of a log."""
    found: list[bytes] = []
    async for message in channel.messages():
        found.append(message.content)
        if len(found) == count:
            break
    return found


async def test_hundreds_of_channels_need_few_threads_and_descriptors(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    process = psutil.Process()
    threads, descriptors = process.num_threads(), process.num_fds()
    async with joined(node, room, "alice", CHANNELS, tmp_path) as (channels, made):
        assert len(channels) == len(made) == CHANNELS
        names = [channel.config.channel_id.encode() for channel in made]
        await asyncio.gather(*map(Channel.send, made, names))
        # Of the process, which may have more of other tests: gRPC's own, and those for states.
        assert process.num_threads() <= threads + 20
        # Three for each open state, with its directory, and what gRPC has.
        assert process.num_fds() <= descriptors + 3 * OPEN_STATES + 20
        for channel in made:
            await channel.wait_for(lambda status: not status.unpublished)
    async with joined(node, room, "bob", CHANNELS) as (_, others):
        for number, channel in enumerate(others):
            assert await received(channel, 1) == [f"{room}-{number}".encode()]


async def test_all_channels_come_back_when_their_node_does(
    own_node: NodeProcess, room: str, tmp_path: Path
) -> None:
    async with joined(own_node, room, "alice", 3, tmp_path) as (_, made):
        await made[0].send(b"first")
        await made[0].wait_for(lambda status: not status.unpublished)
        await asyncio.to_thread(own_node.terminate)
        for channel in made:
            await channel.wait_for(lambda status: status.node is None)
            await channel.send(b"offline")
        await asyncio.to_thread(own_node.start)
        for channel in made:
            await channel.wait_for(lambda status: status.synced and not status.unpublished)
        async with joined(own_node, room, "bob", 3) as (_, others):
            assert await received(others[0], 2) == [b"first", b"offline"]
            assert await received(others[1], 1) == await received(others[2], 1) == [b"offline"]


async def test_a_state_that_another_takes_while_it_is_closed_ends_one_channel_only(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    async with (
        Channels.open(node.listen, open_states=1) as channels,
        asyncio.timeout(PATIENCE_S),
    ):
        first = await channels.join(f"{room}-0", "alice", state=tmp_path / "0.db")
        await first.wait_for(lambda status: status.synced)
        second = await channels.join(f"{room}-1", "alice", state=tmp_path / "1.db")
        await second.send(b"the first state is closed now")
        async with Channel.join(
            node.listen, f"{room}-0", "alice", state=tmp_path / "0.db"
        ) as taker:
            await taker.send(b"mine")
            with pytest.raises(StateTakenError):
                await first.send(b"no longer mine")
            await taker.wait_for(lambda status: status.synced)
            assert [message.content for message in await taker.log()] == [b"mine"]
        await second.send(b"still here")
        assert len(await second.log()) == 2
