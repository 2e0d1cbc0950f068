"""The pools of connections when more is asked of them than they have."""

from __future__ import annotations

import random

import pytest

from store.db.pool import PoolSettings
from store.domain.ports import PageRequest, ScanRequest, StoreUnavailable, TopicFilter
from tests.integration.storage.node import running
from tests.integration.storage.world import NOW, random_batch

SETTINGS = PoolSettings(bulk_connections=1, read_patience_s=0.2)


async def test_scans_that_find_no_connection_are_told_so_and_keep_nobody_else_waiting(
    database_url: str,
) -> None:
    wanted = ScanRequest(TopicFilter(), 0, NOW + 1, None, include_data=True, page_size=0)
    async with running(database_url, SETTINGS) as node:
        batch = random_batch(random.Random(1), 20, [NOW])
        async with node.database.bulk_pool.connection():
            with pytest.raises(StoreUnavailable, match="became free"):
                await anext(node.reader.scan(wanted))
            assert all(await node.store(batch))
            request = PageRequest(
                TopicFilter(), None, 0, NOW + 1, None, forward=True, limit=100, include_data=True
            )
            assert (await node.reader.query(request)).count == len(batch)
        assert (await anext(node.reader.scan(wanted))).count == len(batch)
