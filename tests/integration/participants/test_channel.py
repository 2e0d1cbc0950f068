"""Participants of one channel through a real node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.message.hashing import message_hash
from storenode.sds.aio.blocking_channel import Channel as BlockingChannel
from storenode.sds.aio.channel import Channel
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.transport import Route
from storenode.sds.events import Acknowledged, EphemeralReceived
from tests.support.node import NodeProcess
from tests.support.participant import SHAPE, Lossy, Said, config_of, conversation, sending

PATIENCE_S = 90.0
HOUR_NS = 3_600 * 10**9
PUBSUB = "/waku/2/rs/1/0"


def topic(room: str) -> str:
    return f"/sds/1/{room}/proto"


async def contents(channel: Channel) -> list[bytes]:
    return [message.content for message in await channel.log(1_000)]


async def synced(channel: Channel) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await channel.wait_for(lambda status: status.synced)


def conversed(room: str, count: int, *, ago_ns: int = 0, hints: bool = True) -> list[Said]:
    """Return what a channel has said, until now or some time ago."""
    return list(
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


async def past(node: NodeProcess, room: str, count: int, *, hints: bool = True) -> list[Said]:
    """Publish what a channel has said, about now."""
    said = conversed(room, count, hints=hints)
    await publish(node, room, said)
    return said


async def publish(node: NodeProcess, room: str, said: Sequence[Said]) -> None:
    async with connect(node.listen) as client:
        messages = [new_message(m.payload, topic(room), PUBSUB, m.timestamp_ns) for m in said]
        async for _ in client.publish_all(messages):
            pass


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
        assert await contents(alice) == await contents(bob) == [b"who is there?", b"it is me"]
        assert alice.status.unpublished == alice.status.unacknowledged == 0
        assert str(alice.status) == "synced"


async def test_a_node_reports_which_messages_it_stores_without_sending_them(
    node: NodeProcess, room: str
) -> None:
    route = Route(room, PUBSUB, topic(room))
    said = await past(node, room, 40)
    hints = [message_hash(PUBSUB, m.payload, topic(room), None, m.timestamp_ns) for m in said]
    link = StoreNode(node.listen).open(route)
    assert await link.holds([*hints, bytes(32), b"no hash"]) == set(hints)
    assert await link.holds([b"no hash"]) == set()
    await link.close()


async def test_ephemeral_content_reaches_those_that_listen_and_is_not_stored(
    node: NodeProcess, room: str
) -> None:
    async with (
        Channel.join(node.listen, room, "alice") as alice,
        Channel.join(node.listen, room, "bob") as bob,
        asyncio.timeout(PATIENCE_S),
    ):
        await synced(alice)
        await synced(bob)
        events = bob.events()
        await alice.send_ephemeral(b"typing")
        async for event in events:
            if isinstance(event, EphemeralReceived):
                assert (event.sender_id, event.content) == ("alice", b"typing")
                break
        assert await contents(bob) == []


async def test_killed_at_any_moment_nothing_said_is_lost_and_no_clock_is_used_twice(
    node: NodeProcess, room: str, tmp_path: Path
) -> None:
    state, said = tmp_path / "alice.db", []
    for run in range(3):
        with sending(node.listen, room, "alice", state) as process:
            assert process.stdout is not None
            said += [process.stdout.readline() for _ in range(15 + 10 * run)]
            process.kill()
            said += [line for line in process.stdout.readlines() if line.endswith("\n")]
    async with Channel.join(
        node.listen, room, "alice", state=state, config=config_of(room, "alice")
    ) as alice:
        async with asyncio.timeout(PATIENCE_S):
            await alice.wait_for(lambda status: status.synced and not status.unpublished)
        own = {message.message_id for message in await alice.log(1_000)}
        assert {line.strip() for line in said} <= own
    async with Channel.join(node.listen, room, "bob", config=config_of(room, "bob")) as bob:
        await synced(bob)
        log = await bob.log(1_000)
        assert {message.message_id for message in log} == own
        assert len({message.lamport for message in log}) == len(log)


@pytest.mark.parametrize(("hints", "calls"), [(True, {"by_hint": 1}), (False, {"by_id": 1})])
async def test_every_second_message_of_800_is_repaired_in_one_call(
    node: NodeProcess, room: str, *, hints: bool, calls: dict[str, int]
) -> None:
    said = await past(node, room, 801, hints=hints)
    lost = {each.hint for each in said[0:-1:2]}
    lossy = Lossy(StoreNode(node.listen), lambda each: each.hint in lost)
    async with Channel.join(lossy, room, "late", config=config_of(room, "late")) as late:
        await synced(late)
        log = await late.log(1_000)
        assert [m.message_id for m in log] == [each.message_id for each in said]
        # What it says itself meanwhile comes back as an echo.
        assert late.counts.received - late.counts.echoes == len(said)
        assert late.calls == {"follow": 1, "scan": 1, **calls}
        assert late.status.lost == 0


@pytest.mark.parametrize("depth", [50, 600])
async def test_the_calls_for_a_run_of_lost_messages_do_not_grow_with_its_length(
    node: NodeProcess, room: str, depth: int
) -> None:
    said = await past(node, room, 800)
    lost = {each.hint for each in said[-depth - 1 : -1]}
    lossy = Lossy(StoreNode(node.listen), lambda each: each.hint in lost)
    async with Channel.join(lossy, room, "late", config=config_of(room, "late")) as late:
        await synced(late)
        counts = late.counts
        assert counts.received - counts.duplicates - counts.echoes == len(said)
        assert late.calls == {"follow": 1, "scan": 1, "by_hint": 1, "closure": 1}


async def test_what_was_pruned_before_it_was_received_holds_up_no_participant(
    node: NodeProcess, room: str
) -> None:
    # A new participant of an old channel: its beginning is not held any longer.
    said = conversed(room, 50, ago_ns=HOUR_NS)
    await publish(node, room, said[2:])
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
