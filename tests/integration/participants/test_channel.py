"""Participants of channels through a real node: logs, repair, many channels."""

from __future__ import annotations

import asyncio
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
from storenode.sds.aio.node import StoreNode
from storenode.sds.events import Acknowledged, EphemeralReceived
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


def test_two_participants_have_one_log_and_acknowledge_each_other(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    """Use blocking channels, each call of which is one of an asynchronous channel."""
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
        assert {(m.sender_id, m.own, m.entries_after) for m in received} == {("alice", False, 0)}
        answer = bob.send(b"three")
        acknowledged = set[Acknowledged]()
        for event in events:
            if isinstance(event, Acknowledged):
                acknowledged.add(event)
            if acknowledged == {Acknowledged(each, 0.0, "bob") for each in sent}:
                break
        alice.wait_for(lambda status: status.synced and not status.unpublished, PATIENCE_S)
        assert (str(alice.status), alice.status.unacknowledged) == ("synced", 0)
        assert [message.message_id for message in alice.log()] == [*sent, answer]
        arrivals = bob.events()
        alice.send_ephemeral(b"typing")
        typing = next(each for each in arrivals if isinstance(each, EphemeralReceived))
        assert (typing.sender_id, typing.content) == ("alice", b"typing")
        assert [m.message_id for m in bob.log()] == [*sent, answer], "it is not stored"
        with pytest.raises(TimeoutError):
            alice.wait_for(lambda status: status.lost > 0, 0.01)
        with pytest.raises(ValueError, match="needs content"):
            alice.send(b"")
        assert (alice.missing(), alice.lacking(), alice.unpublished()) == ((), {}, frozenset())
    with BlockingChannel.join(node.listen, room, "alice", state=state) as alice:
        assert [message.content for message in alice.log()] == [b"one", b"two", b"three"]


CHANNELS = 80
OPEN_STATES = 8


@asynccontextmanager
async def joined(
    node: NodeProcess, room: str, sender: str, folder: Path | None = None
) -> AsyncIterator[list[Channel]]:
    """Return the channels of one sender, synced."""
    async with (
        Channels.open(node.listen, open_states=OPEN_STATES) as channels,
        asyncio.timeout(PATIENCE_S),
    ):
        made = [
            channels.join(f"{room}-{number}", sender, state=folder and folder / f"{number}.db")
            for number in range(CHANNELS)
        ]
        joined = await asyncio.gather(*made)
        assert len(channels) == CHANNELS
        for channel in joined:
            await channel.wait_for(lambda status: status.synced)
        yield joined


async def test_hundreds_of_channels_need_few_threads_and_descriptors(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    process = psutil.Process()
    threads, descriptors = process.num_threads(), process.num_fds()
    async with joined(node, room, "alice", tmp_path) as made:
        names = [channel.config.channel_id.encode() for channel in made]
        await asyncio.gather(*map(Channel.send, made, names))
        # Of the process, which may have more of other tests: gRPC's own, and those for states.
        assert process.num_threads() <= threads + 20
        # Three for each open state, with its directory, and what gRPC has.
        assert process.num_fds() <= descriptors + 3 * OPEN_STATES + 20
        for channel in made:
            await channel.wait_for(lambda status: not status.unpublished)
    async with joined(node, room, "bob") as others:
        for number, channel in enumerate(others):
            assert (await anext(channel.messages())).content == f"{room}-{number}".encode()
