"""The pools of connections when more is asked of them than they have."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from psycopg_pool import AsyncConnectionPool

from store.db.connection import Connection
from store.domain.ports import PageRequest, ScanRequest, StoreUnavailableError, TopicFilter
from tests.integration.storage.node import SETTINGS, running
from tests.integration.storage.world import NOW, random_batch
from tests.support.outlet import WideOutlet

ONE_FOR_SCANS = replace(SETTINGS, bulk_connections=1)


async def test_scans_without_a_connection_fail_and_delay_no_other_call(
    database_url: str,
) -> None:
    wanted = ScanRequest(TopicFilter(), 0, NOW + 1, None, include_data=True, page_size=0)
    async with running(database_url, ONE_FOR_SCANS) as node:
        batch = random_batch(random.Random(1), 20, [NOW])
        async with node.database.bulk_pool.connection():
            with node.impatient(), pytest.raises(StoreUnavailableError, match="became free"):
                await anext(node.reader.scan(wanted, WideOutlet()))
            assert all(await node.store(batch))
            request = PageRequest(
                TopicFilter(), None, 0, NOW + 1, None, forward=True, limit=100, include_data=True
            )
            assert (await node.reader.query(request)).count == len(batch)
        assert len((await anext(node.reader.scan(wanted, WideOutlet()))).timestamps) == len(batch)


async def until_one_waits(pool: AsyncConnectionPool[Connection]) -> None:
    while not pool.get_stats().get("requests_waiting"):  # noqa: ASYNC110 - tells nobody
        await asyncio.sleep(0)


async def test_who_is_cancelled_as_a_connection_is_handed_over_ends_and_gives_it_back(
    database_url: str,
) -> None:
    async with running(database_url, ONE_FOR_SCANS) as node:
        database, pool = node.database, node.database.bulk_pool

        async def never_done(_: Connection) -> None:
            await asyncio.Event().wait()

        # The pool needs a few turns of the event loop to hand a connection over: the cancellation
        # comes in each of them once.
        for turns in range(12):
            lent = await pool.getconn()
            waiting = asyncio.create_task(database.read(never_done, pool=pool))
            await until_one_waits(pool)
            await pool.putconn(lent)
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting}, timeout=60)
            assert waiting.cancelled(), f"after {turns} turns"
        async with asyncio.timeout(60), database.connection(pool) as connection:
            assert await (await connection.execute("select 1")).fetchone() == (1,)
