"""Transports that break again and again: a scan goes on where it was cut, and pauses grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from random import Random

import pytest

from storenode.sds.aio.bus import Bus, BusLink, BusTransport
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.feed import Feed
from storenode.sds.aio.ledger import Ledger
from storenode.sds.aio.limits import MAX_HINTS_PER_CALL
from storenode.sds.aio.rotation import Rotation
from storenode.sds.aio.transport import Fetched, Route, TransportError
from storenode.sds.bloom import FilterShape
from storenode.sds.channel import MessageChannel
from storenode.sds.config import ChannelConfig
from tests.support.conversation import conversation

PATIENCE_S = 90.0
SHAPE = FilterShape(200, 0.01)
PUBSUB, CONTENT = "/waku/2/rs/1/0", "/sds/1/room/proto"
NEWEST_NS = 1_763_625_600_000_000_000
CONFIG = ChannelConfig("room", "late", filter=SHAPE)


class Breaking(BusTransport):
    """A scan breaks after its first page, as long as it ``breaks``."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, "breaking")
        self.breaks = True
        self.scans: list[int] = []

    def open(self, route: Route) -> BreakingLink:
        return BreakingLink(self, route)


class BreakingLink(BusLink):
    """A link of it."""

    def __init__(self, transport: Breaking, route: Route) -> None:
        super().__init__(transport, route)
        self._breaking = transport

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        self._breaking.scans.append(since_ns)
        async with aclosing(super().scan(since_ns)) as pages:
            async for page in pages:
                yield page
                if self._breaking.breaks:
                    raise TransportError("The line is cut.")


async def test_a_scan_that_was_cut_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    bus = Bus()
    said = list(
        conversation(
            "room",
            2 * MAX_HINTS_PER_CALL + 100,
            pubsub_topic=PUBSUB,
            content_topic=CONTENT,
            newest_ns=NEWEST_NS,
            shape=SHAPE,
        )
    )
    for each in said:
        bus.add(Route("room", PUBSUB, CONTENT), Fetched(each.payload, each.hint, each.timestamp_ns))
    breaking = Breaking(bus)
    state = tmp_path / "late.db"
    async with asyncio.timeout(PATIENCE_S):
        async with Channel.join(breaking, "room", "late", state=state, config=CONFIG) as late:
            await late.wait_for(lambda status: status.trouble == "The line is cut.")
            breaking.away = True
        seen = len(breaking.scans)
        breaking.away = breaking.breaks = False
        async with Channel.join(breaking, "room", "late", state=state, config=CONFIG) as late:
            await late.wait_for(lambda status: status.synced)
            last = await late.log(1_000)
            assert [m.message_id for m in last] == [each.message_id for each in said[-1_000:]]
            assert len(late._participant.core.log) == len(said)
    assert breaking.scans[0] == 0
    assert breaking.scans[seen] >= said[MAX_HINTS_PER_CALL - 1].timestamp_ns


class Noting(Rotation):
    """Notes the pauses instead of having them, and ends the feed after some."""

    def __init__(self, links: Sequence[BusLink]) -> None:
        super().__init__(links)
        self.pauses_s: list[float] = []

    def failed(self) -> float:
        self.pauses_s.append(super().failed())
        if len(self.pauses_s) == 6:
            raise asyncio.CancelledError
        return 0.0


class Scanless(BusLink):
    """A link that can be followed and not scanned."""

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        async with aclosing(super().scan(since_ns)) as pages:
            async for page in pages:
                yield page
        raise TransportError("The line is cut.")


async def test_nodes_that_can_be_followed_and_not_scanned_are_tried_ever_more_rarely() -> None:
    bus, route = Bus(), Route("room", PUBSUB, CONTENT)
    rotation = Noting([Scanless(bus.transport(name), route) for name in ("one", "two")])

    async def nothing(*_: object) -> None:
        return None

    feed = Feed(
        Ledger(MessageChannel(CONFIG, NEWEST_NS // 1_000_000, Random(1))),
        rotation,
        clock=lambda: NEWEST_NS,
        take=nothing,
        relieve=nothing,
        tell=lambda _: None,
        changed=lambda _: None,
    )
    with pytest.raises(asyncio.CancelledError):
        await feed.run()
    assert rotation.pauses_s == [0.0, 0.1, 0.0, 0.2, 0.0, 0.4]
