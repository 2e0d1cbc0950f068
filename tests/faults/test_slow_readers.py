"""A follower and scans that do not read while tens of thousands of messages pass."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from random import Random

import psutil
import psycopg

from store.embedded.supervisor import running_url
from storenode.client.node import connect
from storenode.client.types import FollowPage, ScanPage
from tests.support.acknowledged import (
    Follower,
    Ledger,
    Publisher,
    check_node,
    following,
    found_by_hash,
    publishing,
)
from tests.support.node import NodeProcess

MESSAGES = 60_000
PAYLOAD_BYTES = 1_024
SLOW = 2
"""Followers, and scans as many."""

MAX_GROWTH_BYTES = 128 * 1024 * 1024
"""Of the node's memory, while 60 MiB wait for each of the slow readers."""

OPEN = """
select pid, state, query, now() - xact_start from pg_stat_activity
where usename = current_user and pid <> pg_backend_pid() and now() - xact_start > interval '3 s'
"""


async def test_who_does_not_read_costs_little_and_misses_nothing(
    node: NodeProcess, dice: Random
) -> None:
    ledger = Ledger()
    node.start()

    def publishers() -> list[Publisher]:
        return [
            Publisher(node.listen, ledger, Random(dice.random()), PAYLOAD_BYTES, 1_000)
            for _ in range(2)
        ]

    async with publishing(publishers()):
        await ledger.reached(MESSAGES // 5)
    process = psutil.Process(node.process.pid)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(node.listen)) for _ in range(2 * SLOW)]
        follows = [
            await stack.enter_async_context(aclosing(client.follow(from_beginning=True)))
            for client in clients[:SLOW]
        ]
        scans = [
            await stack.enter_async_context(aclosing(client.scan())) for client in clients[SLOW:]
        ]
        begun = list(ledger.sent)
        followed = [await anext(pages) for pages in follows]
        scanned = [await anext(pages) for pages in scans]
        before = process.memory_info().rss
        reader = Follower(node.listen)
        async with following(reader), publishing(publishers()):
            await ledger.more(MESSAGES)
            # Others are served meanwhile.
            await reader.has_all(set(begun))
            assert await found_by_hash(clients[0], begun[:1_000]) == set(begun[:1_000])
        growth = process.memory_info().rss - before
        print(f"the node's memory grew by {growth / 2**20:.0f} MiB")  # noqa: T201
        assert growth < MAX_GROWTH_BYTES
        assert open_transactions(node) == []
        for pages, first in zip(follows, followed, strict=True):
            seen = hashes(first)
            while len(seen) < len(ledger.sent):
                seen += hashes(await anext(pages))
            assert once(seen) == ledger.sent
        for scan, begin in zip(scans, scanned, strict=True):
            seen = hashes(begin)
            async for page in scan:
                seen += hashes(page)
            # A scan may end with what there was when it began.
            assert set(begun) <= once(seen) <= ledger.sent
    assert await check_node(node.listen, ledger) == ledger.sent


def open_transactions(node: NodeProcess) -> list[tuple[object, ...]]:
    """Transactions of the node that are older than a few seconds."""
    url = running_url(node.data_dir)
    assert url is not None
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(OPEN).fetchall()


def hashes(page: FollowPage | ScanPage) -> list[bytes]:
    """The hashes of a page."""
    return [message.message_hash for message in page.messages]


def once(seen: list[bytes]) -> set[bytes]:
    """What was seen, nothing twice."""
    assert len(seen) == len(set(seen)), "a message came twice"
    return set(seen)
