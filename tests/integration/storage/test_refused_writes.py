"""A database that refuses writes or has no connection left, for publishers and readers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import psycopg
import pytest
from psycopg import conninfo, sql

from store.db.connection import Connection
from store.db.locks import COMMIT_ORDER
from store.db.partitions import ensure_ahead
from store.db.pool import Pool, PoolSettings
from store.domain.ports import PageRequest, StoreUnavailableError, TopicFilter
from store.runtime.monitor import DatabaseMonitor, WriteCanary
from tests.integration.storage.followers import WideOutlet
from tests.integration.storage.node import SETTINGS, Node, running
from tests.integration.storage.world import NOW, random_batch
from tests.support.polling import PAUSE_S
from tests.support.postgres import PostgresServer

READ_ONLY = "alter database {database} set default_transaction_read_only = on"
WRITABLE = "alter database {database} reset default_transaction_read_only"
DISCONNECT = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = {name} and pid <> pg_backend_pid()"
)
REVOKE = "revoke insert on storenode.messages from storenode"
GRANT = "grant insert on storenode.messages to storenode"
REQUEST = PageRequest(
    TopicFilter(), None, 0, NOW + 1, None, forward=True, limit=100, include_data=True
)


class Watched:
    """A node's storage with its monitor and its canary, on a database that the superuser changes.

    ``reasons`` grows with what the canary reports.
    """

    def __init__(self, node: Node, admin_url: str) -> None:
        self.node = node
        self.admin_url = admin_url
        self.reasons: list[str | None] = []
        self.monitor = DatabaseMonitor(node.database, lambda _: None)
        writer = node.writer
        self.canary = WriteCanary(
            node.database, writer.commit_canary, lambda: writer.committed_s, self.reasons.append
        )
        self._rng = random.Random(7)

    def alter(self, *statements: str) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute("set default_transaction_read_only = off")
            name = connection.info.dbname
            names = {"database": sql.Identifier(name), "name": sql.Literal(name)}
            for each in statements:
                connection.execute(sql.SQL(each).format(**names))

    async def publish(self) -> list[bool]:
        return await self.node.store(random_batch(self._rng, 1, [NOW]))

    @asynccontextmanager
    async def stalled(self, cause: str) -> AsyncIterator[None]:
        """Let the canary try within the block, and wait until it reports a cause."""
        running = asyncio.create_task(self.canary.run())
        try:
            async with asyncio.timeout(60):
                while cause not in str(self.reasons[-1:]):  # noqa: ASYNC110 - tells nobody
                    await asyncio.sleep(PAUSE_S)
            yield
            async with asyncio.timeout(60):
                while self.reasons[-1] is not None:  # noqa: ASYNC110 - tells nobody
                    await asyncio.sleep(PAUSE_S)
        finally:
            running.cancel()
            await asyncio.wait({running})


@pytest.fixture
async def watched(postgres: PostgresServer, database_url: str) -> AsyncIterator[Watched]:
    name = str(conninfo.conninfo_to_dict(database_url)["dbname"])
    # With so much patience, a refusal that was tried again would outlast the test.
    async with running(database_url, PoolSettings(write_patience_s=3_600.0)) as node:
        yield Watched(node, postgres.url(name, "postgres"))


@pytest.mark.parametrize(
    ("refuse", "allow", "sentence"),
    [
        ((READ_ONLY, DISCONNECT), (WRITABLE, DISCONNECT), "the database is read-only"),
        ((REVOKE,), (GRANT,), "the database role lacks a privilege"),
    ],
    ids=["read-only", "privilege"],
)
async def test_a_database_that_refuses_writes_refuses_publishing_alone(
    watched: Watched, refuse: tuple[str, ...], allow: tuple[str, ...], sentence: str
) -> None:
    node = watched.node
    assert await watched.publish() == [True]
    watched.alter(*refuse)
    with pytest.raises(StoreUnavailableError, match=sentence):
        await watched.publish()
    await watched.canary._attempt()
    assert str(watched.reasons[-1]).startswith(sentence)
    assert await watched.monitor.check() is None
    with pytest.raises(StoreUnavailableError, match=sentence):
        await watched.publish()
    assert (await node.reader.query(REQUEST)).count == 1
    watched.alter(*allow)
    await watched.canary._attempt()
    assert watched.reasons[-1] is None
    assert await watched.publish() == [True]


@pytest.mark.parametrize(
    "lock",
    [
        "lock table storenode.messages in share mode",
        f"select pg_advisory_xact_lock({COMMIT_ORDER})",
    ],
    ids=["table", "commit-order"],
)
async def test_a_lock_that_stops_publishing_stops_the_canary_and_is_named(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr("store.runtime.monitor.STALL_S", 0.05)
    monkeypatch.setattr("store.runtime.monitor.CANARY_INTERVAL_S", 0.0)
    monkeypatch.setattr("store.runtime.monitor.CAUSE_INTERVAL_S", 0.05)
    assert await watched.publish() == [True]
    async with await watched.node.database.connect() as connection:
        await ensure_ahead(connection, time.time_ns(), None)
    with psycopg.connect(watched.admin_url, application_name="backup") as holder:
        holder.execute(lock.encode())
        pid = holder.info.backend_pid
        cause = f"a lock is held by pid {pid} (backup, role postgres, idle in transaction)"
        async with watched.stalled(f"nothing has been committed for more than 0.05 s: {cause}"):
            # What waits may still be stored: only a refusal is certain.
            assert watched.node.database.write_failure is None
            assert (await watched.node.reader.query(REQUEST)).count == 1
            holder.rollback()


ONE_FOR_SCANS = replace(SETTINGS, bulk_connections=1)


async def test_scans_without_a_connection_fail_and_delay_no_other_call(database_url: str) -> None:
    wanted = PageRequest(TopicFilter(), None, 0, NOW + 1, None, True, 0, True)
    async with running(database_url, ONE_FOR_SCANS) as node:
        batch = random_batch(random.Random(1), 20, [NOW])
        async with node.database.connection(node.database.bulk_pool):
            with node.impatient(), pytest.raises(StoreUnavailableError, match="became free"):
                await anext(node.reader.scan(wanted, WideOutlet()))
            assert all(await node.store(batch))
            assert (await node.reader.query(REQUEST)).count == len(batch)
        assert len((await anext(node.reader.scan(wanted, WideOutlet()))).timestamps) == len(batch)


async def until_one_waits(pool: Pool) -> None:
    while not pool.waiting:  # noqa: ASYNC110 - tells nobody
        await asyncio.sleep(0)


async def test_who_is_cancelled_as_a_connection_is_handed_over_ends_and_gives_it_back(
    database_url: str,
) -> None:
    async with running(database_url, ONE_FOR_SCANS) as node:
        database, pool = node.database, node.database.bulk_pool

        async def never_done(_: Connection) -> None:
            await asyncio.Event().wait()

        # A few turns of the event loop pass until a connection is handed over: the cancellation
        # comes in each of them once.
        for turns in range(12):
            async with database.connection(pool):
                waiting = asyncio.create_task(database.read(never_done, pool=pool))
                await until_one_waits(pool)
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting}, timeout=60)
            assert waiting.cancelled(), f"after {turns} turns"
        async with asyncio.timeout(60), database.connection(pool) as connection:
            assert await (await connection.execute("select 1")).fetchone() == (1,)
