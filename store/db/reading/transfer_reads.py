"""Messages by ID, for a transfer: in few statements, each bounded in rows and in bytes.

A read of data returns a prefix of what it was asked for: as many messages as fit.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from reconcile.ids import SyncIds
from store.db.pool import Connection, Database
from store.db.reading.messages import (
    MESSAGE_AT,
    largest_of,
    position_parameters,
    read_frames,
    rows_at,
)
from store.db.replication import cover_what_is_visible, waiting_for_standby
from store.messages.transfer import transferred

MAX_LOADED_IDS: Final = 4_096
"""IDs of one statement that reads messages."""

MAX_SOUGHT_IDS: Final = 16_384
"""IDs of one statement that only looks for them."""

_SEEK: Final = f"""
select string_agg(int4send(k.n::int), ''::bytea)
from unnest(%(ts)b::bigint[], %(hash)b::bytea[]) with ordinality as k(ts, hash, n)
cross join {MESSAGE_AT}
"""
_NUMBER: Final = Struct(">i")


class TransferReader:
    """`store.domain.ports.TransferReads` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        """Return messages to send (see `store.domain.ports.TransferReads`)."""
        portion = ids[:MAX_LOADED_IDS]
        if not len(portion):
            return []
        pairs = portion.pairs()

        async def read(connection: Connection) -> list[bytes | None]:
            rows = sorted(await rows_at(connection, pairs, largest_of(max_bytes, len(pairs))))
            frames = await read_frames(connection, rows, max_bytes, include_data=True)
            found = {row[:2]: frame for row, frame in zip(rows, frames, strict=False)}
            # Behind the first message that did not fit nothing is known.
            end = rows[len(frames)][:2] if len(frames) < len(rows) else None
            loaded: list[bytes | None] = []
            for at in pairs:
                if at == end:
                    break
                frame = found.get(at)
                loaded.append(transferred(frame) if frame else None)
            return loaded

        return await self._database.read(read, pool=self._database.bulk_pool)

    async def held(self, ids: SyncIds) -> list[bool]:
        """Return which messages are stored (see `store.domain.ports.TransferReads`)."""
        stored = [False] * len(ids)
        for start in range(0, len(ids), MAX_SOUGHT_IDS):
            for place in await self._seek(ids[start : start + MAX_SOUGHT_IDS]):
                stored[start + place - 1] = True
        return stored

    async def _seek(self, ids: SyncIds) -> list[int]:
        parameters = position_parameters(ids.pairs())

        async def read(connection: Connection) -> list[int]:
            with waiting_for_standby(connection):
                async with connection.transaction():
                    cursor = await connection.execute(_SEEK, parameters, binary=True)
                    row = await cursor.fetchone()
                    assert row is not None
                    places = _numbers(row[0] or b"")  # type: ignore[arg-type]
                    if places:
                        await cover_what_is_visible(connection)
            return places

        return await self._database.read(read, pool=self._database.bulk_pool)


def _numbers(column: bytes) -> list[int]:
    return [number for (number,) in _NUMBER.iter_unpack(column)]
