"""Links to a channel on a bus, in the simulator and at a node, which answer alike."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import pytest

from sim.bridge import Life
from sim.groups.link import ROUTE, GroupLink
from sim.groups.scenario import drawn_group
from sim.scenario import Faults
from sim.world import World
from store.messages.cursor import FollowCursor, FollowCursors
from storenode.message.hashing import message_hash
from storenode.sds.aio.node import StoreNode
from storenode.sds.aio.transport import FeedCursorRefusedError, Fetched, Link, Outbound
from storenode.sds.codec import Entry, encode
from tests.integration.rpc.harness import serve, within
from tests.support.bus import Bus

COUNT: Final = 5

Contract = Callable[[Link, int, bytes], Coroutine[Any, Any, None]]
"""A contract of a link, at a time, with a cursor that is none of its feed's."""


def on_a_bus(contract: Contract, _: str) -> None:
    asyncio.run(contract(Bus().transport().open(ROUTE), time.time_ns(), b"\xff" * 8))


def simulated(contract: Contract, _: str) -> None:
    """Try a link to a simulated node without faults; what a participant may do is not judged."""
    rng = random.Random(0)
    drawn = drawn_group(rng, 2, with_store=True)
    assert drawn.group is not None
    group = replace(drawn.group, follow=True, messages=0)
    scenario = replace(
        drawn, group=group, faults=Faults(), page_messages=100, sds_claimants=9, causal_messages=100
    )
    world: Any = World(scenario, rng)
    names = ("left", "tried", "handed")
    world.group_judge = SimpleNamespace(**dict.fromkeys(names, lambda *_: None))
    world.relay = lambda *_: None
    with world.loop.running():
        for node in world.nodes:
            node.boot()
        member = world.members[0]
        link = GroupLink(member, Life(), world.nodes[0].name)
        tried = world.loop.begin(None, contract(link, member.clock.unix_ns(), b"1:1"))
        while not tried.done():
            assert world.timeline.step()
        tried.result()


def at_a_node(contract: Contract, database_url: str) -> None:
    async def run() -> None:
        async with serve(database_url) as node:
            link = StoreNode(node.address).open(ROUTE)
            foreign = FollowCursors(b"i" * 16, bytes(32), lambda: bytes(16))
            cursor = foreign.seal(FollowCursor(b"i" * 16, 5, 6))
            await contract(link, time.time_ns(), cursor)
            await link.close()

    asyncio.run(run())


EACH = pytest.mark.parametrize(
    "run", [on_a_bus, simulated, at_a_node], ids=["bus", "simulated", "node"]
)
Run = Callable[[Contract, str], None]


def chain(now_ns: int) -> list[Fetched]:
    """Return messages of which each names the one before it, as they are stored."""
    found, parents = list[Fetched](), list[tuple[str, bytes | None]]()
    for number in range(COUNT):
        time_ns = now_ns - COUNT + number
        payload = encode(ROUTE.channel_id, f"m{number}", lamport=number, parents=parents)
        topics = ROUTE.pubsub_topic, ROUTE.content_topic
        digest = message_hash(topics[0], payload, topics[1], None, time_ns)
        found.append(Fetched(payload, digest, time_ns))
        parents = [(f"m{number}", digest)]
    return found


async def publish(link: Link, messages: list[Fetched]) -> None:
    """Publish messages, each of which must be stored under its hash."""
    batch = [Outbound(each.payload, each.timestamp_ns) for each in messages]
    results = await within(link.publish(batch))
    assert [(each.stored, each.hint) for each in results] == [(True, m.hint) for m in messages]


async def all_of(pages: Any) -> list[Fetched]:  # noqa: ANN401 - of any call
    async with aclosing(pages):
        return [message async for page in pages for message in page]


async def feeds(link: Link, now_ns: int, foreign: bytes) -> None:
    messages = chain(now_ns)
    async with aclosing(link.follow(b"")) as pages:
        first = await within(anext(pages))
        assert (list(first.messages), first.live) == ([], True)
        found: list[Fetched] = []
        for part in (messages[:2], messages[2:]):
            await publish(link, part)
            while len(found) < len(part) or found[-1] != part[-1]:
                page = await within(anext(pages))
                found += page.messages
    assert found == messages
    for cursor, rest in ((first.cursor, messages), (page.cursor, [])):
        found = []
        async with aclosing(link.follow(cursor)) as pages:
            async for page in pages:
                found += page.messages
                if page.live:
                    break
        assert found == rest
    async with aclosing(link.follow(foreign)) as pages:
        with pytest.raises(FeedCursorRefusedError):
            await within(anext(pages))


@EACH
def test_a_feed_gives_what_is_published_once_and_goes_on_from_a_cursor(
    run: Run, database_url: str
) -> None:
    run(feeds, database_url)


async def look_ups(link: Link, now_ns: int, _: bytes) -> None:
    messages = chain(now_ns)
    await publish(link, messages[::-1])
    await publish(link, messages[:1])
    hints = [each.hint for each in messages]
    assert await within(all_of(link.scan(messages[2].timestamp_ns))) == messages[2:]
    wanted = [hints[3], bytes(32), hints[1]]
    found = await within(all_of(link.by_hint(wanted)))
    assert sorted(found, key=lambda each: each.timestamp_ns) == [messages[1], messages[3]]
    assert await within(link.holds([*wanted, b"no hash"])) == {hints[1], hints[3]}
    for absent in (bytes(32), b"no hash"):
        assert await within(link.holds([absent])) == set()
    entries = [Entry("m4", None), Entry("nobody's", None)]
    assert await within(all_of(link.by_id(entries))) == messages[4:]
    assert await within(all_of(link.closure(entries, ["m1"]))) == messages[2:]


@EACH
def test_stored_messages_are_found_by_time_hash_id_and_cause(run: Run, database_url: str) -> None:
    run(look_ups, database_url)
