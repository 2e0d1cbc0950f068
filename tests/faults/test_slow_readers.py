"""A follower and scans that do not read while tens of megabytes of messages pass."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from random import Random

import grpc
import psutil
import psycopg

from store.embedded.supervisor import running_url
from storenode.client.node import NodeClient, connect
from storenode.client.types import FollowPage, ScanPage
from storenode.wire.storenode.v1.store_pb2 import ScanRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.support.acknowledged import (
    Follower,
    Ledger,
    Publisher,
    check_node,
    following,
    found_by_hash,
    publishing,
)
from tests.support.cluster import copy_cluster
from tests.support.node import NodeProcess, running_node

MESSAGES = 15_000
PAYLOAD_BYTES = 4_096
SLOW = 2
"""Followers, and scans as many."""

MAX_GROWTH_BYTES = 128 * 1024 * 1024
"""Of the node's memory, while 60 MiB wait for each of the slow readers."""

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.http2.bdp_probe", 0)]
"""With probes gRPC may take in a whole answer that comes fast, for a caller who does not read."""

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
            Publisher(node.listen, ledger, Random(dice.random()), PAYLOAD_BYTES, 250)
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


async def test_stalled_readers_give_way_and_slow_ones_miss_nothing(
    tmp_path: Path, dice: Random
) -> None:
    ledger = Ledger()
    with running_node(copy_cluster(tmp_path / "node"), "--max-unsent-size", "4MiB") as node:
        async with publishing([Publisher(node.listen, ledger, dice, PAYLOAD_BYTES, 250)]):
            await ledger.reached(2_000)
        process = psutil.Process(node.process.pid)
        before = process.memory_info().rss
        async with (
            grpc.aio.insecure_channel(node.listen, OPTIONS) as channel,
            connect(node.listen) as slow,
            connect(node.listen) as quick,
            aclosing(slow.scan()) as pages,
        ):
            unread = [StoreStub(channel).Scan(ScanRequest(include_data=True)) for _ in range(60)]
            seen = hashes(await anext(pages))
            for _ in range(3):
                assert once(await scanned(quick)) == ledger.sent
                seen += hashes(await anext(pages))
            async for page in pages:
                seen += hashes(page)
                await found_by_hash(quick, seen[:100])
            assert once(seen) == ledger.sent
            growth = process.memory_info().rss - before
            print(f"the node's memory grew by {growth / 2**20:.0f} MiB")  # noqa: T201
            assert growth < MAX_GROWTH_BYTES // 2
            ended = Counter([await ending(call) for call in unread])
        assert ended.keys() <= {"OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
        assert ended["OK"] < len(unread)
        assert "the answer was not read for" in node.log()


async def scanned(client: NodeClient) -> list[bytes]:
    """The hashes of a whole scan."""
    return [digest async for page in client.scan() for digest in hashes(page)]


async def ending(call: grpc.aio.UnaryStreamCall[ScanRequest, ScanPage]) -> str:
    """Read a stream to its end, whatever that is."""
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    code: str = (await call.code()).name
    return code
