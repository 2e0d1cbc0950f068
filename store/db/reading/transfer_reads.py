"""Messages by ID, for a transfer: in few statements, each bounded in rows and in bytes.

A read of data returns a prefix of what it was asked for: as many messages as fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconcile.ids import SyncIds
from store.db.pool import Connection, Database
from store.db.reading.messages import frames_at, rows_at
from store.db.replication import cover_what_is_visible, waiting_for_standby
from store.domain.ports import SyncId
from store.messages.transfer import transferred

MAX_LOADED_IDS: Final = 4_096
"""IDs of one statement that reads messages."""

MAX_SOUGHT_IDS: Final = 16_384
"""IDs of one statement that only looks for them."""


class TransferReader:
    """`store.domain.ports.TransferReads` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        """Return messages to send (see `store.domain.ports.TransferReads`)."""
        portion = ids[:MAX_LOADED_IDS]
        if not len(portion):
            return []
        pairs, pool = portion.pairs(), self._database.bulk_pool
        frames = await self._database.read(frames_at, pairs, max_bytes, pool=pool)
        return [None if frame is None else transferred(frame) for frame in frames]

    async def held(self, ids: SyncIds) -> list[bool]:
        """Return which messages are stored (see `store.domain.ports.TransferReads`)."""
        found: set[SyncId] = set()
        for start in range(0, len(ids), MAX_SOUGHT_IDS):
            part = ids[start : start + MAX_SOUGHT_IDS].pairs()
            found |= await self._database.read(_seek, part, pool=self._database.bulk_pool)
        return [at in found for at in ids.pairs()]


async def _seek(connection: Connection, positions: Sequence[SyncId]) -> set[SyncId]:
    with waiting_for_standby(connection):
        async with connection.transaction():
            rows = await rows_at(connection, positions, 0, include_data=False)
            if rows:
                await cover_what_is_visible(connection)
    return {row[:2] for row in rows}
