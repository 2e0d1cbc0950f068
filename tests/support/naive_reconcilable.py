"""A store's IDs for reconciliation, the plain way: all of them, read at once, in an index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import psycopg

from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.index import IndexView
from reconcile.lattice import LatticeSum
from reconcile.view import ViewAnswer as Answer
from reconcile.view import ViewRead as Read
from store.domain.hub import START, Place
from store.domain.view import Times


class NaiveView:
    """A fixed view; ``reads`` counts the questions."""

    def __init__(self, ids: SyncIds, horizon: SyncId) -> None:
        self.horizon = horizon
        self._view = IndexView.of(ids)

    async def answer(self, read: Read) -> Answer:
        """Return the answer from memory."""
        return self._view.answer(read)

    @property
    def indexed(self) -> IndexView:
        """The whole range."""
        return self._view

    @property
    def places(self) -> list[Place]:
        """The beginning, as it does not look at commits."""
        return [START]

    @property
    def memory_start(self) -> SyncId:
        """The start of the range in memory, which is everything."""
        return LOWEST

    async def lattices(self, spans: Sequence[Times]) -> list[LatticeSum] | None:
        """Return the lattice sums of ranges of time."""
        return self._view.lattices(spans)

    async def listed(self, span: Times, limit: int) -> SyncIds | None:
        """Return the IDs of a range of time; None: more than ``limit``."""
        low, high = (self._view.rank((time_ns, LOWEST[1])) for time_ns in span)
        return self._view.rows.between(low, high) if high - low <= limit else None

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs with their content digests."""
        rows = self._view.rows
        return SyncIds(ids.timestamps, ids.hashes, rows.digests(rows.ranks(ids)))


class NaiveReconcilable:
    """`store.domain.view.Reconcilable` over one select; ``open_views`` shows leaks."""

    def __init__(self, database_url: str) -> None:
        self.horizon: SyncId = LOWEST
        self.open_views = 0
        self.index_entries = 0
        self._url = database_url

    async def held(self, lower: SyncId, upper: SyncId) -> SyncIds:
        """Return all IDs in a half-open range."""
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            cursor = await connection.execute(
                "select ts, hash, content_digest from storenode.messages"
                " where (ts, hash) >= (%s, %s) and (ts, hash) < (%s, %s) order by ts, hash",
                (*lower, *upper),
            )
            rows = await cursor.fetchall()
        ids = SyncIds.of([(ts, bytes(message_hash)) for ts, message_hash, _ in rows])
        joined = b"".join(bytes(digest) for *_, digest in rows)
        return SyncIds(ids.timestamps, ids.hashes, np.frombuffer(joined, np.uint8).reshape(-1, 16))

    @asynccontextmanager
    async def open_view(
        self, lower: SyncId, upper: SyncId, *, recent: bool = False
    ) -> AsyncIterator[NaiveView]:
        """Open a view of what is stored now."""
        del recent
        self.open_views += 1
        try:
            yield NaiveView(await self.held(lower, upper), self.horizon)
        finally:
            self.open_views -= 1
