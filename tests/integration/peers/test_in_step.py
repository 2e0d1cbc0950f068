"""The time until which a participant is in step, and the more complete of its nodes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import psycopg

from storenode.message.topics import DEFAULT_PUBSUB_TOPIC
from storenode.sds import codec
from storenode.sds.aio.channel import Channel, Channels
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.peers.harness import PeerNode
from tests.integration.rpc.harness import within
from tests.support.bus import Bus

HOUR_NS: Final = 3_600_000_000_000
HOUR: Final = (time.time_ns() // HOUR_NS - 5) * HOUR_NS


def said(name: str, timestamp: int, *parents: str, lamport: int = 1) -> WakuMessageAndTopic:
    named = [(each, None) for each in parents]
    payload = codec.encode(
        "room", name, sender_id="bob", lamport=lamport, parents=named, content=b"said"
    )
    message = WakuMessage(
        payload=payload, content_topic="/sds/1/room/proto", timestamp=timestamp, version=0
    )
    return WakuMessageAndTopic(message=message, pubsub_topic=DEFAULT_PUBSUB_TOPIC)


async def log(channel: Channel) -> list[str]:
    return [message.message_id for message in await channel.log()]


async def test_what_the_followed_node_has_lost_is_taken_over_from_the_more_complete_one(
    first: PeerNode, second: PeerNode
) -> None:
    addresses = [second.listener.address, first.listener.address]
    await first.hold([said("one", HOUR + 1), said("two", HOUR + 2)])
    async with Channel.join(addresses, "room", "alice") as channel:
        nothing = await channel.in_step()
        assert nothing.until_ns is None
        assert "no comparison with another store" in nothing.reason

    began_ns = time.time_ns()
    assert (await first.synchronize(second)).in_sync
    async with await psycopg.AsyncConnection.connect(second.url) as connection:
        await connection.execute("delete from storenode.messages where ts = %s", (HOUR + 1,))
    async with Channel.join(addresses, "room", "alice") as channel:
        await within(channel.wait_for(lambda status: status.synced))
        assert await log(channel) == ["two"]
        reported = await channel.nodes_by_completeness()
        assert [each.node for each in reported] == addresses[::-1]
        assert (reported[1].until_ns, reported[1].lacks) == (0, False)
        found = await channel.in_step()
        assert await log(channel) == ["one", "two"]
        assert (found.node, found.until_ns) == (addresses[1], reported[0].until_ns)
        assert found.store_ids == (second.context.identity.store_id,)
        assert found.until_ns is not None
        assert HOUR + HOUR_NS < found.until_ns <= time.time_ns()
        assert began_ns <= found.as_of_ns <= time.time_ns()

        # What came late is not confirmed, and what nobody holds is missing.
        now_ms = time.time_ns() // 1_000_000
        await first.hold([said("three", HOUR + 3, "lost", lamport=now_ms)])
        late = await channel.in_step(HOUR)
        assert late.until_ns is None or late.from_ns >= HOUR + HOUR_NS
        assert (await first.synchronize(second)).in_sync
        missing = await channel.in_step()
        assert missing.until_ns is None
        assert missing.reason.startswith("Missing are 1 or more")


async def test_a_node_that_lacks_messages_comes_last_but_for_one_that_is_off(
    first: PeerNode, second: PeerNode
) -> None:
    await second.hold([said("one", HOUR + 1)])
    first.rules.policy = replace(first.rules.policy, max_message_bytes=4)
    assert (await first.synchronize(second)).refused_by_policy == 1
    addresses = ["127.0.0.1:1", first.listener.address, second.listener.address]
    async with Channels.open(addresses) as channels:
        channel = await channels.join("room", "alice")
        reported = await channel.nodes_by_completeness()
        assert [each.node for each in reported] == addresses[::-1]
        assert [each.lacks for each in reported] == [False, True, False]
        assert [each.answered for each in reported] == [True, True, False]


async def test_a_bus_says_nothing() -> None:
    async with Channel.join(Bus().transport("alice"), "room", "alice") as channel:
        found = await channel.in_step()
        assert found.until_ns is None
        assert "does not say how complete" in found.reason
