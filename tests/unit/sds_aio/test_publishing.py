"""The states of own messages that a node refuses, and of a participant that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest

from storenode.common.errors import ClientClosed
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import NotStored
from storenode.sds.aio.transport import Outbound, PublishResult, Route
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Sent
from tests.support.bus import Bus, BusLink, BusTransport

PATIENCE_S = 60.0
S = 1_000_000_000
START_NS = 1_763_625_600 * S
CONFIG = ChannelConfig("room", "alice", resend_ms=3_600_000, resend_possible_ms=3_600_000)


class Strict(BusTransport):
    """A bus that refuses, like a node, what is more than 20 seconds old, and one word."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, "strict")
        self.now_ns = START_NS
        self.offered: list[Outbound] = []

    def open(self, route: Route) -> StrictLink:
        return StrictLink(self, route)


class StrictLink(BusLink):
    """A link of it."""

    def __init__(self, transport: Strict, route: Route) -> None:
        super().__init__(transport, route)
        self.strict = transport

    async def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[PublishResult], None]:
        async for batch in batches:
            self._check("publish")
            self.strict.offered += batch
            yield [await self._judge(each) for each in batch]

    async def _judge(self, message: Outbound) -> PublishResult:
        if b"forbidden" in message.payload:
            return PublishResult(stored=False, hint=b"", reason="That word is not allowed.")
        if self.strict.now_ns - message.timestamp_ns > 20 * S:
            return PublishResult(stored=False, hint=b"", reason="It is too old.")

        async def one() -> AsyncIterator[Sequence[Outbound]]:
            yield [message]

        (verdict,) = [each async for each in super().publish(one())]
        return verdict[0]


async def test_what_was_away_for_too_long_is_published_with_a_new_time(tmp_path: Path) -> None:
    bus = Bus()
    strict = Strict(bus)
    strict.away = True
    async with (
        Channel.join(
            strict,
            "room",
            "alice",
            state=tmp_path / "alice.db",
            config=CONFIG,
            clock=lambda: strict.now_ns,
        ) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        events = alice.events()
        said = await alice.send(b"hello")
        (own,) = await alice.log()
        assert not strict.offered
        strict.now_ns += 60 * S
        strict.away = False
        sent = await anext(each async for each in events if isinstance(each, Sent))
        first, *_, last = strict.offered
        assert (first.timestamp_ns, last.timestamp_ns) == (START_NS, strict.now_ns)
        assert first.payload == last.payload
        assert sent.message_id == said
        assert sent.hint not in (None, own.hint)
        assert (await alice.log())[0].hint == sent.hint, "others are told where it is now"


async def test_refused_messages_are_reported_and_stay_in_the_log() -> None:
    strict = Strict(Bus())
    async with (
        Channel.join(strict, "room", "alice", config=CONFIG, clock=lambda: strict.now_ns) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        events = alice.events()
        said = await alice.send(b"forbidden")
        async for event in events:
            if isinstance(event, NotStored):
                assert event == NotStored(said, "That word is not allowed.")
                break
        assert len(strict.offered) == 1
        assert alice.status.unpublished == 0
        assert [m.message_id for m in await alice.log()] == [said]


async def test_a_channel_that_was_left_says_so() -> None:
    async with Channel.join(Bus().transport(), "room", "alice", config=CONFIG) as alice:
        events = alice.events()
        await alice.send(b"hello")
    assert [event async for event in events], "what is queued can still be read"
    with pytest.raises(ClientClosed, match="was left"):
        await alice.send(b"too late")
    with pytest.raises(ClientClosed, match="was left"):
        await alice.send_ephemeral(b"too late")
    with pytest.raises(ClientClosed, match="was left"):
        await alice.wait_for(lambda status: status.lost > 0)


async def test_leaving_while_offline_takes_no_time_when_nothing_is_forgotten(
    tmp_path: Path,
) -> None:
    transport = Bus().transport()
    transport.away = True
    state = tmp_path / "alice.db"
    async with asyncio.timeout(PATIENCE_S):
        async with Channel.join(transport, "room", "alice", state=state, config=CONFIG) as alice:
            said = await alice.send(b"later")
        transport.away = False
        async with Channel.join(transport, "room", "alice", state=state, config=CONFIG) as alice:
            await alice.wait_for(lambda status: status.synced and not status.unpublished)
    (stored,) = transport.bus.stored(Route("room", "/waku/2/rs/1/0", "/sds/1/room/proto"))
    assert said.encode() in stored.payload


async def test_the_next_store_is_given_what_the_last_one_may_not_have_passed_on() -> None:
    one, two = Bus().transport("one"), Bus().transport("two")
    route = Route("room", "/waku/2/rs/1/0", "/sds/1/room/proto")
    async with (
        Channel.join([one, two], "room", "alice", config=CONFIG) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        said = await alice.send(b"hello")
        await alice.wait_for(lambda status: not status.unpublished)
        (stored,) = one.bus.stored(route)
        assert said.encode() in stored.payload
        one.away = True
        await alice.send(b"to the second")
        while len(two.bus.stored(route)) < 2:
            await two.bus.news()
        assert stored in two.bus.stored(route), "the same bytes, time and hash"
