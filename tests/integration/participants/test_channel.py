"""Participants of channels through a real node: logs, repair, many channels, reliable channels."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.sds.aio.blocking_channel import Channel as BlockingChannel
from storenode.sds.aio.channel import Channel, Channels
from storenode.sds.aio.events import Events
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.reliable import (
    Content,
    MessageDelivered,
    MessageReceived,
    MessageSent,
    ReliableChannel,
    ReliableEvent,
    SegmentationConfig,
)
from storenode.sds.aio.state import StateTakenError
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Acknowledged, EphemeralReceived
from storenode.sds.segments import Revision, split
from tests.support.node import NodeProcess
from tests.support.participant import SHAPE, Lossy, Said, config_of, conversation

PATIENCE_S = 90.0
HOUR_NS = 3_600 * 10**9
PUBSUB = "/waku/2/rs/1/0"


def topic(room: str) -> str:
    return f"/sds/1/{room}/proto"


async def synced(channel: Channel) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await channel.wait_for(lambda status: status.synced)


async def past(
    node: NodeProcess, room: str, count: int, *, lost: int = 0, ago_ns: int = 0, hints: bool = True
) -> list[Said]:
    """Publish what a channel has said until some time ago, but for the first, lost messages."""
    said = list(
        conversation(
            room,
            count,
            pubsub_topic=PUBSUB,
            content_topic=topic(room),
            newest_ns=time.time_ns() - ago_ns,
            shape=SHAPE,
            hints=hints,
        )
    )
    async with connect(node.listen) as client:
        messages = [new_message(m.payload, topic(room), PUBSUB, m.timestamp_ns) for m in said]
        async for _ in client.publish_all(messages[lost:]):
            pass
    return said


async def test_two_participants_have_one_log_and_acknowledge_each_other(
    node: NodeProcess, room: str
) -> None:
    async with (
        Channel.join(node.listen, room, "alice") as alice,
        Channel.join(node.listen, room, "bob") as bob,
        asyncio.timeout(PATIENCE_S),
    ):
        await synced(bob)
        events = alice.events()
        first = await alice.send(b"who is there?")
        async for received in bob.messages():
            assert (received.message_id, received.content) == (first, b"who is there?")
            assert (received.sender_id, received.own, received.entries_after) == ("alice", False, 0)
            break
        await bob.send(b"it is me")
        async for event in events:
            if isinstance(event, Acknowledged):
                assert event == Acknowledged(first, 0.0, "bob")
                break
        await alice.wait_for(lambda status: status.synced)
        logs = [[each.content for each in await channel.log()] for channel in (alice, bob)]
        assert logs == [[b"who is there?", b"it is me"]] * 2
        assert alice.status.unpublished == alice.status.unacknowledged == 0
        assert str(alice.status) == "synced"
        events = bob.events()
        await alice.send_ephemeral(b"typing")
        async for event in events:
            if isinstance(event, EphemeralReceived):
                assert (event.sender_id, event.content) == ("alice", b"typing")
                break
        assert len(await bob.log()) == 2, "it is not stored"


@pytest.mark.parametrize(
    ("lost", "hints", "calls"),
    [
        (slice(0, -1, 2), True, {"by_hint": 1}),
        (slice(0, -1, 2), False, {"by_id": 1}),
        (slice(-51, -1), True, {"by_hint": 1, "closure": 1}),
        (slice(-601, -1), True, {"by_hint": 1, "closure": 1}),
    ],
)
async def test_the_calls_for_lost_messages_do_not_grow_with_their_number(
    node: NodeProcess, room: str, lost: slice, *, hints: bool, calls: dict[str, int]
) -> None:
    said = await past(node, room, 801, hints=hints)
    withheld = {each.hint for each in said[lost]}
    lossy = Lossy(StoreNode(node.listen), lambda each: each.hint in withheld)
    async with Channel.join(lossy, room, "late", config=config_of(room, "late")) as late:
        await synced(late)
        log = await late.log(1_000)
        assert [m.message_id for m in log] == [each.message_id for each in said]
        # What it says itself meanwhile comes back as an echo.
        counts = late.counts
        assert counts.received - counts.duplicates - counts.echoes == len(said)
        assert "closure" in calls or not counts.duplicates
        assert late.calls == {"follow": 1, "scan": 1, **calls}
        assert late.status.lost == 0


async def test_what_was_pruned_before_it_was_received_holds_up_no_participant(
    node: NodeProcess, room: str
) -> None:
    # A new participant of an old channel: its beginning is not held any longer.
    said = await past(node, room, 50, lost=2, ago_ns=HOUR_NS)
    async with Channel.join(node.listen, room, "late", config=config_of(room, "late")) as late:
        await synced(late)
        log = await late.log()
        assert [m.message_id for m in log] == [each.message_id for each in said[2:]]
        assert log[0].unmet == tuple(each.message_id for each in said[:2])
        assert str(late.status) == "synced, 2 lost"


def test_a_program_without_an_event_loop_has_the_same_channel(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    state = tmp_path / "alice.db"
    with (
        BlockingChannel.join(node.listen, room, "alice", state=state) as alice,
        BlockingChannel.join(node.listen, room, "bob") as bob,
    ):
        bob.wait_for(lambda status: status.synced, PATIENCE_S)
        events = alice.events()
        sent = alice.send_all([b"one", b"two"])
        received = [message for _, message in zip(sent, bob.messages(), strict=False)]
        assert [message.message_id for message in received] == sent
        answer = bob.send(b"three")
        acknowledged = set[str]()
        for event in events:
            if isinstance(event, Acknowledged):
                acknowledged.add(event.message_id)
            if acknowledged == set(sent):
                break
        alice.wait_for(lambda status: not status.unpublished, PATIENCE_S)
        assert [message.message_id for message in alice.log()] == [*sent, answer]
        with pytest.raises(TimeoutError):
            alice.wait_for(lambda status: status.lost > 0, 0.01)
        with pytest.raises(ValueError, match="needs content"):
            alice.send(b"")
        assert (alice.missing(), alice.lacking(), alice.unpublished()) == ((), {}, frozenset())
    with BlockingChannel.join(node.listen, room, "alice", state=state) as alice:
        assert [message.content for message in alice.log()] == [b"one", b"two", b"three"]


CHANNELS = 220
OPEN_STATES = 8

Group = tuple[Channels, list[Channel]]


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


async def first_of(channel: Channel, count: int) -> list[bytes]:
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
            assert await first_of(channel, 1) == [f"{room}-{number}".encode()]


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
