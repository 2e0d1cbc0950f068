"""Reliable channels through a real node: large contents, requests and their events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import Events
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.reliable import (
    Content,
    MessageDelivered,
    MessageDeliveryError,
    MessageReceived,
    MessageSendError,
    MessageSent,
    ReliableChannel,
    ReliableEvent,
    SegmentationConfig,
)
from storenode.sds.config import ChannelConfig
from storenode.sds.segments import Revision, split
from tests.support.node import NodeProcess
from tests.support.participant import Lossy

PATIENCE_S = 60.0
SMALL = SegmentationConfig(segment_bytes=1_024)


def quick(room: str, sender: str) -> ChannelConfig:
    """Return acknowledges at once what comes."""
    return ChannelConfig(room, sender, sync_min_ms=100, sync_max_ms=200, filter_every=1)


@asynccontextmanager
async def pair(
    node: NodeProcess, room: str, *, lost: float = 0.0
) -> AsyncIterator[tuple[ReliableChannel, ReliableChannel]]:
    """Return two participants that are synced; the second one loses messages that come live."""
    rng = random.Random(0)
    place = Lossy(StoreNode(node.listen), lambda _: rng.random() < lost)
    async with (
        asyncio.timeout(PATIENCE_S),
        ReliableChannel.join(
            node.listen, room, "alice", config=quick(room, "alice"), segmentation=SMALL
        ) as alice,
        ReliableChannel.join(
            place, room, "bob", config=quick(room, "bob"), segmentation=SMALL
        ) as bob,
    ):
        for each in (alice, bob):
            await each.channel.wait_for(lambda status: status.synced)
        yield alice, bob


async def next_of(events: Events[ReliableEvent], *kinds: type[ReliableEvent]) -> ReliableEvent:
    async for event in events:
        if isinstance(event, kinds):
            return event
    raise AssertionError("the events have ended")


async def received(events: Events[ReliableEvent]) -> Content:
    event = await next_of(events, MessageReceived)
    assert isinstance(event, MessageReceived)
    return event.content


async def test_a_large_content_comes_whole_over_a_link_that_loses_half(
    node: NodeProcess, room: str
) -> None:
    content = random.Random(1).randbytes(200_000)
    async with pair(node, room, lost=0.5) as (alice, bob):
        reported, ends, arrivals = alice.events(), alice.events(), bob.events()
        request = await alice.send(content)
        small = await alice.send(b"")
        first, second = await received(arrivals), await received(arrivals)
        assert (first.request_id, first.sender_id, first.own) == (request, "alice", False)
        assert first.content == content
        assert (second.request_id, second.content) == (small, b"")
        # In this order, each once, and nothing else of a request.
        of = {name: [type(await next_of(reported, MessageSent))] for name in (request, small)}
        assert of == {request: [MessageSent], small: [MessageSent]}
        delivered = {await next_of(ends, MessageDelivered) for _ in range(2)}
        assert delivered == {MessageDelivered(request), MessageDelivered(small)}
        logs = [[each async for each in _some(channel.messages(), 2)] for channel in (alice, bob)]
        assert [[each.content for each in log] for log in logs] == [[content, b""]] * 2
        assert [each.own for each in logs[0]] == [True, True]


async def _some(messages: AsyncIterator[Content], count: int) -> AsyncIterator[Content]:
    for _ in range(count):
        yield await anext(messages)


async def test_a_receiver_that_restarts_between_segments_has_the_content_once(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    segments = split(b"0123456789" * 100, 256, Revision.NIM)
    state = tmp_path / "bob.db"
    async with (
        asyncio.timeout(PATIENCE_S),
        Channel.join(node.listen, room, "alice") as alice,
    ):
        await alice.send_all(segments[:4])
        await alice.wait_for(lambda status: not status.unpublished)
        async with ReliableChannel.join(node.listen, room, "bob", state=state) as bob:
            await bob.channel.wait_for(lambda status: status.synced)
            assert len(await bob.channel.log()) == 4
        async with ReliableChannel.join(node.listen, room, "bob", state=state) as bob:
            arrivals = bob.events()
            await alice.send_all(segments[4:])
            assert (await received(arrivals)).content == b"0123456789" * 100
            await alice.send_all(split(b"next", 256, Revision.PUBLISHED))
            assert (await received(arrivals)).content == b"next"


async def test_what_no_node_takes_and_what_no_participant_acknowledges_is_reported(
    node: NodeProcess, room: str
) -> None:
    config = ChannelConfig(room, "alice", resend_ms=200, resend_possible_ms=400, max_sends=2)
    too_large = SegmentationConfig(segment_bytes=102_400)
    async with (
        asyncio.timeout(PATIENCE_S),
        ReliableChannel.join(
            node.listen, room, "alice", config=config, segmentation=too_large, cipher=Padding()
        ) as alice,
    ):
        # The large one may be given up before a node has the small one.
        reported, ends = alice.events(), alice.events()
        large = await alice.send(bytes(60_000))
        failed = await next_of(reported, MessageSendError)
        assert isinstance(failed, MessageSendError)
        assert failed.request_id == large
        assert failed.error
        small = await alice.send(b"nobody is there")
        assert await next_of(reported, MessageSent) == MessageSent(small)
        given_up = [await next_of(ends, MessageDeliveryError) for _ in range(2)]
        assert {getattr(each, "request_id", "") for each in given_up} == {large, small}
        with pytest.raises(ValueError, match="fit into 255 segments"):
            await alice.send(bytes(102_400 * 255 + 1))


class Padding:
    """Makes of more than 50 kB what no node takes."""

    whole = True

    def seal(self, clear: bytes) -> bytes:
        return clear + bytes(200_000 if len(clear) > 50_000 else 0)

    def open(self, sealed: bytes) -> bytes:
        return sealed
