"""Participants of two stores that never reconcile, and one of which dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import Connected, Disconnected
from tests.support.fleet import Fleet
from tests.support.node import NodeProcess
from tests.support.participant import config_of, until

Pair = tuple[NodeProcess, NodeProcess]

PATIENCE_S = 100.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]) -> Iterator[Pair]:
    """Return two stores that never reconcile."""
    nodes = Fleet(tmp_path_factory.mktemp("pair"), new_database=new_store)
    try:
        yield nodes.start(), nodes.start()
    finally:
        nodes.close()


async def test_another_store_goes_on_where_the_first_stopped(pair: Pair) -> None:
    # Neither has seen the other's cursors, and there is nobody else who could repair.
    first, second = pair
    both = [first.listen, second.listen]
    async with (
        Channel.join(both, "two", "alice", config=config_of("two", "alice")) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        events = alice.events()
        await alice.wait_for(lambda status: status.synced)
        async with Channel.join(second.listen, "two", "bob", config=config_of("two", "bob")) as bob:
            for number in range(20):
                await bob.send(b"only at the second node %d" % number)
        assert alice.status.node == first.listen
        first.kill()
        await until(alice, 20)
        assert alice.status.node == second.listen
        await alice.send(b"to the second node")
        await alice.wait_for(lambda status: status.synced and not status.unpublished)
        alice_log = await alice.log()
        seen = []
        async for event in events:
            if isinstance(event, Connected | Disconnected):
                seen.append((type(event), event.node))
                if len(seen) == 3:
                    break
        assert seen == [
            (Connected, first.listen),
            (Disconnected, first.listen),
            (Connected, second.listen),
        ]
    async with (
        Channel.join(second.listen, "two", "carol", config=config_of("two", "carol")) as carol,
        asyncio.timeout(PATIENCE_S),
    ):
        await until(carol, 21)
        assert [m.message_id for m in await carol.log()] == [m.message_id for m in alice_log]
    first.start()


async def test_a_cursor_of_a_store_that_was_made_anew_falls_back_to_a_scan(
    pair: Pair, tmp_path: Path
) -> None:
    old, new = pair
    state = tmp_path / "alice.db"
    async with Channel.join(
        old.listen, "anew", "alice", state=state, config=config_of("anew", "alice")
    ) as alice:
        await alice.send(b"at the old store")
        async with asyncio.timeout(PATIENCE_S):
            await alice.wait_for(lambda status: status.synced and not status.unpublished)
    async with Channel.join(new.listen, "anew", "bob", config=config_of("anew", "bob")) as bob:
        await bob.send(b"at the new store")
    places = [new.listen]
    async with (
        Channel.join(
            places, "anew", "alice", state=state, config=config_of("anew", "alice")
        ) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        await until(alice, 2)
        # The old store's cursor is tried, in case both are one database, and refused.
        assert alice.calls["follow"] == 2
        assert alice.calls["scan"] == 1
