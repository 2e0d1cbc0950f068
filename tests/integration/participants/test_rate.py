"""A participant with a rate limit publishes in each epoch what that allows, and no more."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from storenode.sds.aio.channel import Channel
from storenode.sds.epochs import RateLimit
from tests.support.node import NodeProcess

PATIENCE_S = 40.0
EPOCH_S = 10_000
LIMIT = RateLimit(3, EPOCH_S)
SAID = [b"line %d" % number for number in range(7)]


class Clock:
    """The time, and what a test adds to it."""

    def __init__(self) -> None:
        # The first epoch has long to go.
        self.added_ns = -(time.time_ns() % (EPOCH_S * 10**9))

    def __call__(self) -> int:
        return time.time_ns() + self.added_ns

    def next_epoch(self) -> None:
        self.added_ns += EPOCH_S * 10**9


async def until_left(channel: Channel, count: int) -> None:
    await channel.wait_for(lambda status: status.unpublished == count)


async def test_each_epoch_lets_its_messages_through_in_order(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    clock, state = Clock(), tmp_path / "alice.db"
    async with (
        asyncio.timeout(PATIENCE_S),
        Channel.join(node.listen, room, "bob", clock=clock) as bob,
    ):
        received = bob.messages()
        async with Channel.join(
            node.listen, room, "alice", state=state, clock=clock, rate_limit=LIMIT
        ) as alice:
            await alice.send_all(SAID)
            await until_left(alice, 4)
            for said in SAID[:3]:
                assert (await anext(received)).content == said
            # What waited for its epoch has a time of now: nodes refuse old ones.
            clock.next_epoch()
            await until_left(alice, 1)
            for said in SAID[3:6]:
                assert (await anext(received)).content == said
        # The epoch of a restart counts as used, since it is not known what left in it.
        async with Channel.join(
            node.listen, room, "alice", state=state, clock=clock, rate_limit=LIMIT
        ) as alice:
            await alice.wait_for(lambda status: status.synced)
            assert alice.status.unpublished == 1
            clock.next_epoch()
            await until_left(alice, 0)
            assert (await anext(received)).content == SAID[6]
            assert [message.content for message in await alice.log()] == SAID
