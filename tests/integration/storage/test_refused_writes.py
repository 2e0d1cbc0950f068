"""A database that answers and refuses writes: the results for publishers, readers and probes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import conninfo, sql

from store.db.pool import PoolSettings
from store.domain.ports import PageRequest, StoreUnavailable, TopicFilter
from store.runtime.monitor import DatabaseHealth, DatabaseMonitor
from tests.integration.storage.node import Node, running
from tests.integration.storage.world import NOW, random_batch
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
    """A node's storage with its monitor, on a database that the superuser changes."""

    def __init__(self, node: Node, admin_url: str) -> None:
        self.node = node
        self._admin_url = admin_url
        self._changes: list[DatabaseHealth] = []
        self.monitor = DatabaseMonitor(node.database, self._changes.append)
        self._rng = random.Random(7)

    def alter(self, *statements: str) -> None:
        with psycopg.connect(self._admin_url, autocommit=True) as connection:
            connection.execute("set default_transaction_read_only = off")
            name = connection.info.dbname
            names = {"database": sql.Identifier(name), "name": sql.Literal(name)}
            for each in statements:
                connection.execute(sql.SQL(each).format(**names))

    async def look(self) -> DatabaseHealth:
        health = await self.monitor.check()
        self.monitor._change(health)
        return health

    async def publish(self) -> list[bool]:
        return await self.node.store(random_batch(self._rng, 1, [NOW]))


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
    assert (await watched.look()).takes_writes
    watched.alter(*refuse)
    with pytest.raises(StoreUnavailable, match=sentence):
        await watched.publish()
    health = await watched.look()
    assert (health.is_up, health.takes_writes) == (True, False)
    assert str(health.reason).startswith(sentence)
    with pytest.raises(StoreUnavailable, match=sentence):
        await watched.publish()
    assert (await node.reader.query(REQUEST)).count == 1
    watched.alter(*allow)
    assert (await watched.look()).takes_writes
    assert await watched.publish() == [True]


async def test_a_small_write_that_is_not_committed_in_time_is_a_stall(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.runtime.monitor.COMMIT_TIMEOUT_S", 0.05)
    assert await watched.publish() == [True]
    holder = await watched.node.database.connect()
    async with holder, holder.transaction():
        await holder.execute("lock table storenode.messages in share mode")
        health = await watched.look()
        assert (health.is_up, health.takes_writes) == (True, False)
        assert "has not committed a small write" in str(health.reason)
        # What waits may still be stored: only a refusal is certain.
        assert watched.node.database.write_failure is None
        assert (await watched.node.reader.query(REQUEST)).count == 1


async def test_a_login_that_is_refused_is_the_reason_of_an_outage(watched: Watched) -> None:
    watched.alter("alter role storenode nologin", DISCONNECT)
    try:
        health = await watched.look()
        assert not health.is_up
        assert "refuses the node's login" in str(health.reason)
    finally:
        watched.alter("alter role storenode login")
    assert (await watched.look()).takes_writes
