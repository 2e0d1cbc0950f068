"""Recording links report what they lost, and by which way each message arrived."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from chaos.checker.history import History
from chaos.link import LinkState, RecordingTransport, Traffic, Way
from storenode.message.hashing import message_hash
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.transport import Outbound, Route
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig
from tests.support.bus import Bus, has

PATIENCE_S = 60.0


class Room:
    """A channel whose participants reach a bus in memory through recording links."""

    def __init__(self, *, remembers: bool = True) -> None:
        self.bus = Bus(remembers=remembers)
        self.history = History()
        self.traffic = Traffic(self.history, str)

    def join(self, name: str, link: LinkState) -> AbstractAsyncContextManager[Channel]:
        config = ChannelConfig(
            "room",
            name,
            filter=FilterShape(200, 0.01),
            sync_min_ms=100,
            sync_max_ms=200,
            repair=RepairConfig(request_min_ms=50, request_max_ms=150),
        )
        transport = RecordingTransport(self.bus.transport(name), link, self.traffic)
        return Channel.join(transport, "room", name, config=config)


async def live(channel: Channel) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await channel.wait_for(lambda status: status.live)


async def test_a_lost_message_arrives_by_its_hint() -> None:
    room, fate = Room(), iter([True])
    bobs = LinkState("bob", lambda: next(fate, False))
    async with room.join("alice", LinkState("alice")) as alice, room.join("bob", bobs) as bob:
        await live(bob)
        lost = await alice.send(b"lost")
        other = await alice.send(b"other")
        await has(bob, 2)
    assert bobs.lost == {lost}
    assert bobs.arrivals == {lost: Way.HINT, other: Way.LIVE}
    assert room.history.acks.keys() <= room.history.published.keys()
    assert not room.traffic.answers


async def test_a_message_that_no_node_stores_arrives_by_sds_repair() -> None:
    room, fate = Room(remembers=False), iter([True])
    bobs = LinkState("bob", lambda: next(fate, False))
    async with (
        room.join("alice", LinkState("alice")) as alice,
        room.join("bob", bobs) as bob,
        room.join("carol", LinkState("carol")) as carol,
    ):
        await live(bob)
        await live(carol)
        lost = await alice.send(b"lost")
        await alice.send(b"other")
        await has(carol, 2)
        await has(bob, 2)
    assert bobs.lost == {lost}
    assert bobs.arrivals[lost] is Way.SDS_REPAIR


async def test_ephemeral_messages_are_not_recorded_as_stored() -> None:
    history, bus = History(), Bus()
    transport = RecordingTransport(
        bus.transport("alice"), LinkState("alice"), Traffic(history, str)
    )
    link = transport.open(Route("room", "/p", "/c"))
    batch = [Outbound(b"kept", 1), Outbound(b"passing", 2, ephemeral=True)]
    assert [result.stored for result in await link.publish(batch)] == [True, True]
    kept = message_hash("/p", b"kept", "/c", None, 1)
    assert history.acks.keys() == {kept}
    assert [each.ephemeral for each in history.published.values()] == [False, True]
