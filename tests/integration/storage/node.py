"""The storage of one node on a database, without its gRPC side."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from store.db.feed import DatabaseFeed
from store.db.gossip import UnreadRows
from store.db.locks import COMMIT_ORDER
from store.db.messages import DatabaseReader
from store.db.partitions import PartitionMap
from store.db.pool import Database, PoolSettings
from store.db.writer import DatabaseWriter
from store.domain.hub import CommitRow, OwnCommits, Place
from store.domain.ports import Source
from store.messages.record import RecordBatch
from tests.integration.storage.world import DAY, NOW, random_batch
from tests.support.polling import PAUSE_S, until

RETENTION = 30 * DAY
_IN_TRANSACTION = """
select count(*) from pg_stat_activity
where datname = current_database() and state like 'idle in transaction%%'
"""
_WAITING = """
select count(*) from pg_locks where not granted and locktype = %s
and pid in (select pid from pg_stat_activity where datname = current_database())
"""
WORKERS = 2
"""Transactions that a node's writer has under way at most."""

SETTINGS = PoolSettings(write_connections=WORKERS + 1, read_patience_s=60.0)
"""The settings with more patience than a busy machine needs; tests of its end use `impatient`."""

_IMPATIENCE_S = 0.5


@dataclass
class Node:
    """A writer, a reader and a feed on one `Database`, as `store.runtime` joins them."""

    database: Database
    partitions: PartitionMap
    writer: DatabaseWriter
    reader: DatabaseReader
    feed: DatabaseFeed
    lost: list[tuple[Place, Place]]
    stored: list[tuple[RecordBatch, Source, int]]

    async def store(self, batch: RecordBatch, source: Source = Source.CLIENT) -> list[bool]:
        """Store a batch."""
        return list(await self.writer.store(batch, source))

    async def rows(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement on a connection of its own, and fetch what it gives."""
        connection = await self.database.connect()
        async with connection:
            cursor = await connection.execute(statement.encode(), values, binary=True)
            return await cursor.fetchall() if cursor.description else []

    async def until_blocked(self, kind: str, count: int = 1) -> None:
        """Wait until ``count`` sessions wait for a lock of this kind."""
        async with await self.database.connect() as connection:

            async def are_waiting() -> bool:
                cursor = await connection.execute(_WAITING, (kind,))
                return await cursor.fetchone() == (count,)

            await until(are_waiting)

    @asynccontextmanager
    async def blocked(self, *plugs: RecordBatch) -> AsyncIterator[list[asyncio.Task[list[bool]]]]:
        """Keep all workers from committing within the block, so that what comes is queued.

        Yields:
            The calls that occupy the workers, with these batches, or with one message each.
        """
        rng = random.Random(0)
        plugs = plugs or tuple(random_batch(rng, 1, [NOW - 2]) for _ in range(WORKERS))
        async with await self.database.connect() as holder:
            await holder.execute("select pg_advisory_lock(%s)", (COMMIT_ORDER,))
            calls = []
            for number, plug in enumerate(plugs, start=1):
                calls.append(asyncio.create_task(self.store(plug)))
                await self.until_blocked("advisory", number)
            yield calls

    async def until_tail_waits(self) -> None:
        """Wait until the feed has read all commits: its first connection ends who is past it."""
        while self.feed._waiting is None:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(PAUSE_S)

    async def no_transaction(self) -> None:
        """Wait until no connection stands in a transaction: a closed one goes by and by."""
        async with asyncio.timeout(90):
            while await self.value(_IN_TRANSACTION):  # noqa: ASYNC110 - tells nobody
                await asyncio.sleep(PAUSE_S)

    @contextmanager
    def impatient(self) -> Iterator[None]:
        """Let callers that begin within the block give up soon."""
        kept = self.database.settings
        hurried = replace(kept, read_patience_s=_IMPATIENCE_S, write_patience_s=_IMPATIENCE_S)
        self.database.settings = hurried
        try:
            yield
        finally:
            self.database.settings = kept

    async def value(self, statement: str, *values: object) -> object:
        """Return the one value of a statement."""
        return (await self.rows(statement, *values))[0][0]


@asynccontextmanager
async def running(
    url: str,
    settings: PoolSettings = SETTINGS,
    now_ns: Callable[[], int] = lambda: NOW,
    *,
    own: OwnCommits | None = None,
    on_commits: Callable[[Sequence[CommitRow]], None] = lambda _: None,
    max_confirms: int = 0,
) -> AsyncIterator[Node]:
    """Open a node's storage on a database."""
    database = await Database.open(url, settings)
    partitions = PartitionMap(now_ns, RETENTION)
    stored: list[tuple[RecordBatch, Source, int]] = []
    lost: list[tuple[Place, Place]] = []
    feed = DatabaseFeed(
        database, on_lost=lambda reached, left: lost.append((reached, left)), on_commits=on_commits
    )
    writer = DatabaseWriter(
        database,
        partitions,
        own=own,
        feed=feed,
        on_stored=lambda *each: stored.append(each),
        unread=UnreadRows(database, max_confirms) if max_confirms else None,
    )
    try:
        await writer.start()
        await feed.start()
        node = Node(database, partitions, writer, DatabaseReader(database), feed, lost, stored)
        await node.until_tail_waits()
        yield node
    finally:
        await feed.stop()
        await writer.stop()
        await database.close()
