"""The tap tells truly what a link has lost and by which way each message came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from store.demo.ledger import Ledger, hash_of
from store.demo.tap import Passage, Tap, Way
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.transport import Outbound, Route
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import Missing
from tests.support.bus import Bus
from tests.unit.sds_aio.test_bus import has

PATIENCE_S = 60.0


class Room:
    """Participants on a bus in memory, each over a tap."""

    def __init__(self, *, remembers: bool = True) -> None:
        self.bus = Bus(remembers=remembers)
        self.ledger = Ledger()

    def join(
        self, name: str, passage: Passage, state: Path | None = None
    ) -> AbstractAsyncContextManager[Channel]:
        config = ChannelConfig(
            "room",
            name,
            filter=FilterShape(200, 0.01),
            sync_min_ms=100,
            sync_max_ms=200,
            repair=RepairConfig(request_min_ms=50, request_max_ms=150),
        )
        tap = Tap(self.bus.transport(name), passage, self.ledger)
        return Channel.join(tap, "room", name, state=state, config=config)


def passage(name: str, loses: Callable[[], bool] = lambda: False) -> Passage:
    return Passage(name, loses)


async def live(channel: Channel) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await channel.wait_for(lambda status: status.live)


async def test_what_is_lost_comes_by_its_hint() -> None:
    room, fate = Room(), iter([True])
    bobs = passage("bob", lambda: next(fate, False))
    async with room.join("alice", passage("alice")) as alice, room.join("bob", bobs) as bob:
        await live(bob)
        lost = await alice.send(b"lost")
        heard = await alice.send(b"heard")
        await has(bob, 2)
    assert bobs.lost == {lost}
    assert bobs.came == {lost: Way.HINT, heard: Way.LIVE}
    assert room.ledger.acknowledged <= room.ledger.offered
    assert not room.ledger.answers


async def test_what_is_lost_again_comes_once_its_way_is_free() -> None:
    room, fate = Room(), iter([True])
    bobs = passage("bob", lambda: next(fate, False))
    bobs.loses_again = tuple(Way)
    async with room.join("alice", passage("alice")) as alice, room.join("bob", bobs) as bob:
        await live(bob)
        lost = await alice.send(b"lost")
        await alice.send(b"heard")
        async with asyncio.timeout(PATIENCE_S), bob.events() as events:
            while not isinstance(event := await anext(events), Missing):
                pass
        assert [each.message_id for each in event.messages] == [lost]
        assert lost not in bobs.came
        bobs.loses_again = (Way.LIVE, Way.HINT)
        await has(bob, 2)
    assert bobs.came[lost] is Way.ID


async def test_what_nobody_remembers_comes_by_sds_repair() -> None:
    room, fate = Room(remembers=False), iter([True])
    bobs = passage("bob", lambda: next(fate, False))
    async with (
        room.join("alice", passage("alice")) as alice,
        room.join("bob", bobs) as bob,
        room.join("carol", passage("carol")) as carol,
    ):
        await live(bob)
        await live(carol)
        lost = await alice.send(b"lost")
        await alice.send(b"heard")
        await has(carol, 2)
        await has(bob, 2)
    assert bobs.lost == {lost}
    assert bobs.came[lost] is Way.SDS_REPAIR


async def test_after_an_absence_the_cursor_brings_what_was_said(tmp_path: Path) -> None:
    room, bobs = Room(), passage("bob")
    async with room.join("alice", passage("alice")) as alice:
        async with room.join("bob", bobs, tmp_path / "bob.db") as bob:
            before = await alice.send(b"before")
            await has(bob, 1)
        away = await alice.send(b"away")
        async with asyncio.timeout(PATIENCE_S):
            await alice.wait_for(lambda status: not status.unpublished)
        async with room.join("bob", bobs, tmp_path / "bob.db") as bob:
            await has(bob, 2)
    assert bobs.came[before] in (Way.LIVE, Way.SCAN)
    assert bobs.came[away] in (Way.CURSOR, Way.SCAN)


async def test_what_goes_out_as_ephemeral_is_not_acknowledged_as_stored() -> None:
    ledger, bus = Ledger(), Bus()
    link = Tap(bus.transport("alice"), passage("alice"), ledger).open(Route("room", "/p", "/c"))

    async def batches() -> AsyncIterator[Sequence[Outbound]]:
        yield [Outbound(b"kept", 1), Outbound(b"passing", 2, ephemeral=True)]

    answers = link.publish(batches())
    assert [verdict.stored for verdict in await anext(answers)] == [True, True]
    await answers.aclose()
    assert ledger.acknowledged == ledger.offered == {hash_of("/p", b"kept", "/c", 1)}
