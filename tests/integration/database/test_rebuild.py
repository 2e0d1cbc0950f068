"""Indexes of partitions that are over are rebuilt where they waste room, and nothing else is."""

from __future__ import annotations

import asyncio

import pytest

from store.db import condition as condition_module
from store.db import partitions
from store.db.check import check
from store.db.condition import SETTLED_NS, find_bloated, rebuild
from store.domain.partitioning import DAY_NS
from tests.integration.database.rows import NOW, TODAY, Connection, opened, values
from tests.integration.database.test_maintainer import Events, maintainer, running
from tests.support.polling import PAUSE_S

ROWS = 40_000
ENTRY_BYTES = {
    "messages_topic_idx": 44,
    "messages_pkey": 60,
    "hashes_key_idx": 20,
    "sds_channel_idx": 44,
    "sds_pkey": 76,
}
"""The size of an index entry with its line pointer, aligned, by index."""

# In turn over many topics, one after the other in time: every index but the one by time is entered
# at many places.
_FILL = """
with given as (
    select n, %(first)s + n * %(step)s as ts, sha256(int8send(n)) as hash,
           md5((n %% 50)::text)::uuid as topic, md5(n::text)::uuid as key
    from generate_series(1::bigint, %(rows)s::bigint) n
), m as (insert into storenode.messages
    select ts, n / 1000, topic, hash, '', '', '', '' from given),
h as (insert into storenode.hashes select hashint8extended(n, 0), ts from given)
insert into storenode.sds
select key, topic, ts, hash, '', '', '', 1, '{}', '{}', '{}', false from given
"""
_INDEXES = """
select root.relname::text, x.relname::text, pg_relation_size(x.oid)
from pg_index i join pg_class x on x.oid = i.indexrelid
join pg_class root on root.oid = pg_partition_root(x.oid)
where i.indrelid = 'storenode.{}'::regclass
"""
_WAITING = "select count(*) from pg_locks where not granted and pid = {}"
_REBUILDING = """
select count(*) from pg_stat_activity
where datname = current_database() and state = 'active' and query like 'REINDEX %'
"""
_LEFT = "select relname from pg_class where relkind = 'i' and relname ~ '_cc(new|old)'"
_BROKEN = "select count(*) from pg_index where not indisvalid"


async def fill_database(url: str) -> None:
    """Insert rows of yesterday, with partitions of their own."""
    async with await opened(url) as connection:
        first = TODAY - DAY_NS
        await partitions.ensure_for(connection, [first], NOW, DAY_NS)
        given = {"first": first, "step": DAY_NS // ROWS // 2, "rows": ROWS}
        await connection.execute(_FILL, given)
        await connection.execute("analyze")


async def indexes(connection: Connection) -> dict[str, tuple[str, int]]:
    """Name and size of the indexes of the partitions with rows, by the table's index."""
    found: dict[str, tuple[str, int]] = {}
    for table in ("messages", "hashes", "sds"):
        catalog = await partitions.read_catalog(connection)
        (name,) = [
            each.name
            for each in catalog.partitions
            if each.table == table and TODAY - 1 in each.bounds
        ]
        cursor = await connection.execute(_INDEXES.format(name))
        found |= {root: (index, size) for root, index, size in await cursor.fetchall()}
    return found


async def rebuild_all(connection: Connection, now_ns: int) -> set[str]:
    """Rebuild what is found, each index once; return their names."""
    done: set[str] = set()
    while (found := await find_bloated(connection, now_ns, done)) is not None:
        assert await rebuild(connection, found)
        done.add(found)
    return done


async def test_what_is_over_takes_the_room_that_its_rows_need(connection: Connection) -> None:
    before = await indexes(connection)
    content = "select md5(string_agg(m::text, '' order by ts, hash)) from storenode.messages m"
    digest = await values(connection, content)
    assert await rebuild_all(connection, NOW) == set(), "its day ended twelve hours ago"
    later_ns = NOW + 365 * DAY_NS
    done = await rebuild_all(connection, later_ns)
    assert {before["messages_topic_idx"][0], before["sds_pkey"][0]} <= done
    after = await indexes(connection)
    for root, (name, size) in after.items():
        if name in done:
            # Besides entries there are some pages above the leaves.
            assert size == pytest.approx(ROWS * ENTRY_BYTES[root], rel=0.04)
        else:
            assert size == before[root][1]
    assert after["messages_topic_idx"][1] < 0.75 * before["messages_topic_idx"][1]
    assert await rebuild_all(connection, later_ns) == set(), "nothing wastes any more"
    assert await values(connection, content) == digest
    assert await values(connection, _BROKEN) == [0]


async def test_a_transaction_that_lasts_is_not_waited_for_and_what_is_left_goes_later(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condition_module, "LOCK_TIMEOUT_MS", 50)
    name, size = (await indexes(connection))["messages_topic_idx"]
    async with (
        await opened(database_url) as other,
        await opened(database_url) as reader,
        reader.transaction(),
    ):
        await reader.execute("set transaction isolation level repeatable read")
        await reader.execute("select 1 from storenode.messages limit 1")
        assert not await rebuild(connection, name)
        assert (await indexes(connection))["messages_topic_idx"] == (name, size)
        assert await values(other, _BROKEN) == [1]
        report = await asyncio.to_thread(check, database_url)
        assert "invalid index" not in [each.kind for each in report.findings]
        monkeypatch.setattr(condition_module, "LOCK_TIMEOUT_MS", 60_000)
        again = asyncio.create_task(rebuild(connection, name))
        waiting = _WAITING.format(connection.info.backend_pid)
        while await values(other, waiting) == [0] and not again.done():  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)
        # The rest is dropped without locking readers out.
        await other.execute("set lock_timeout = '1s'")
        await other.execute("select 1 from storenode.messages limit 1")
        assert not again.done()
    assert await again
    assert (await indexes(connection))["messages_topic_idx"][1] < size
    assert await values(connection, _BROKEN) == [0]


async def rebuilding(connection: Connection, count: int) -> None:
    """Wait until ``count`` indexes are being rebuilt."""
    while await values(connection, _REBUILDING) != [count]:  # noqa: ASYNC110 - tells nobody
        await asyncio.sleep(PAUSE_S)


async def test_maintenance_goes_on_while_an_index_is_rebuilt_and_ends_it(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show that a rebuild waits for older transactions; rounds and folds continue."""
    monkeypatch.setattr(condition_module, "LOCK_TIMEOUT_MS", 60_000)
    name, _ = (await indexes(connection))["messages_topic_idx"]
    events = Events()
    node = maintainer(lambda: opened(database_url), events, None, lambda: TODAY + SETTLED_NS, 0.01)
    async with await opened(database_url) as reader, reader.transaction():
        await reader.execute("set transaction isolation level repeatable read")
        await reader.execute("select 1 from storenode.messages limit 1")
        async with running(node):
            await rebuilding(connection, 1)
            before = node.rounds
            while node.rounds < before + 3:
                assert await values(connection, _REBUILDING) == [1]
        await rebuilding(connection, 0)
        assert "index_rebuilt" not in events.names()
    node = maintainer(lambda: opened(database_url), events, None, lambda: TODAY + SETTLED_NS, 0.01)
    async with running(node):
        await events.wait_for("index_rebuilt")
    # What the first one left is gone.
    assert not [each for each in await values(connection, _LEFT) if each.startswith(name)]
