"""Two nodes on one Postgres, which is restarted under load, and one of which dies."""

from __future__ import annotations

import asyncio
from random import Random

from store.db.locks import MAINTENANCE
from storenode.client.node import connect
from tests.faults.processes import logged, metrics
from tests.support.acknowledged import (
    Follower,
    Ledger,
    Publisher,
    check_node,
    following,
    hashes_of,
    publishing,
)
from tests.support.cluster import ClusterServer
from tests.support.command import Command
from tests.support.node import NodeProcess

TAKEN = ("storenode_maintenance_events_total", "maintenance_taken")
HOLDERS = """
select count(*) from pg_locks where locktype = 'advisory' and granted
  and (classid::bigint << 32) + objid::bigint = %s
"""


async def test_both_outlive_a_restart_and_serve_what_the_other_stored(
    server: ClusterServer, nodes: list[NodeProcess], dice: Random
) -> None:
    ledger = Ledger()
    for node in nodes:
        node.database_url = server.url
        node.start()
    publishers = [
        Publisher(node.listen, ledger, Random(dice.random())) for node in nodes for _ in range(2)
    ]
    followers = [Follower(node.listen) for node in nodes]
    async with following(*followers):
        async with publishing(publishers):
            for _ in range(3):
                await ledger.more(dice.randint(300, 2_000))
                server.stop()
                server.start()
            await ledger.more(500)
        for node, follower in zip(nodes, followers, strict=True):
            held = await check_node(node.listen, ledger)
            await follower.has_all(held)
            assert set(follower.hashes) == held == ledger.sent
    assert followers[0].hashes == followers[1].hashes, "both deliver in the database's order"
    Command().ok("db", "check", "--database-url", server.url)


async def test_a_cursor_of_one_works_at_the_other(
    server: ClusterServer, nodes: list[NodeProcess], dice: Random
) -> None:
    ledger = Ledger()
    for node in nodes:
        node.database_url = server.url
        node.start()
    first = Follower(nodes[0].listen)
    async with publishing([Publisher(nodes[0].listen, ledger, dice)]):
        async with following(first):
            await ledger.more(300)
            await first.has_all(set(ledger.acknowledged))
        second = Follower(nodes[1].listen, first.cursor, first.hashes)
        async with following(second):
            await ledger.more(300)
            await second.has_all(set(ledger.acknowledged))
    found: list[bytes] = []
    async with connect(nodes[0].listen) as one, connect(nodes[1].listen) as two:
        begun = await anext(one.scan(page_size=7))
        found += hashes_of(begun)
        async for page in two.scan(cursor=begun.cursor):
            found += hashes_of(page)
    ledger.check(found)
    assert len(found) == len(ledger.sent)


async def test_another_node_takes_over_the_maintenance_of_one_that_dies(
    server: ClusterServer, nodes: list[NodeProcess]
) -> None:
    one, two = nodes
    for node in nodes:
        node.database_url = server.url
    one.start()
    await logged(one, "maintenance_taken")
    two.start()
    assert metrics(two).get(TAKEN, 0) == 0
    assert server.ask(HOLDERS, MAINTENANCE) == [(1,)]
    one.kill()
    await logged(two, "maintenance_taken")
    await asyncio.to_thread(one.start)
    server.stop()
    server.start()
    await logged(two, "maintenance_disconnected")
    assert server.ask(HOLDERS, MAINTENANCE)[0][0] <= 1
