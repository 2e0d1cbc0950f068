"""`store.domain.view.StoredIds` on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from reconcile.ids import SyncIds
from store.db.commits.ids import ids_of
from store.db.commits.pages import is_served, newest
from store.db.pool import Connection, Database
from store.db.reconciliation.summary_read import ColdView, cold_view
from store.domain.hub import CommitRow, Place
from store.domain.view import Newest

_HORIZON: Final = "select horizon_ns from storenode.store"


class DatabaseIds:
    """IDs in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open_cold(self) -> AbstractAsyncContextManager[ColdView]:
        """A view of everything that is held now, in a transaction of its own."""
        return cold_view(self._database)

    async def newest(self, seen: Place) -> Newest:
        """The newest commit now, and whether the database still has one that was seen."""

        async def look(connection: Connection) -> Newest:
            cursor = await connection.execute(_HORIZON, binary=True)
            row = await cursor.fetchone()
            assert row is not None
            served = await is_served(connection, seen)
            return Newest(await newest(connection), row[0], served)  # type: ignore[arg-type]

        return await self._database.read(look)

    async def ids_of(self, commits: Sequence[CommitRow]) -> SyncIds:
        """The IDs that some commits have added and that are held, in any order."""
        return await self._database.read(ids_of, commits, pool=self._database.bulk_pool)
