"""A transport that breaks again and again: a scan goes on where it was cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from storenode.message.limits import MAX_QUERY_HASHES
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.transport import Fetched, Route, TransportError
from storenode.sds.bloom import FilterShape
from storenode.sds.config import ChannelConfig
from tests.support.bus import Bus, BusLink, BusTransport
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
            2 * MAX_QUERY_HASHES + 100,
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
    assert breaking.scans[seen] >= said[MAX_QUERY_HASHES - 1].timestamp_ns
