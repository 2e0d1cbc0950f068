"""A store's IDs for reconciliation, the plain way: all of them, read at once, in an index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.index import IndexView
from tests.support.verifying_pair import MemoryView, Side


class NaiveReconcilable:
    """`store.domain.view.Reconcilable` over one select; ``open_views`` tells of leaks."""

    def __init__(self, database_url: str) -> None:
        self.horizon: SyncId = LOWEST
        self.open_views = 0
        self.index_entries = 0
        self._url = database_url

    async def held(self, lower: SyncId, upper: SyncId) -> SyncIds:
        """All IDs in a half-open range."""
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            cursor = await connection.execute(
                "select ts, hash from storenode.messages"
                " where (ts, hash) >= (%s, %s) and (ts, hash) < (%s, %s) order by ts, hash",
                (*lower, *upper),
            )
            return SyncIds.of([(ts, bytes(digest)) for ts, digest in await cursor.fetchall()])

    @asynccontextmanager
    async def open_view(self, lower: SyncId, upper: SyncId) -> AsyncIterator[MemoryView]:
        """Fix what is held now."""
        self.open_views += 1
        view = MemoryView(Side(view=IndexView.of(await self.held(lower, upper)), sums=False))
        view.horizon = self.horizon
        try:
            yield view
        finally:
            self.open_views -= 1
