"""Messages by ID, for a transfer: in few statements, each bounded in rows and in bytes.

A read of data returns a prefix of what it was asked for: the sizes of all messages found, and the
data of the first ones up to the given bytes. Larger payloads lie outside the rows, and those that
do not fit are not fetched from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from struct import Struct
from typing import Final

from reconcile.ids import SyncIds
from store.db.pool import Connection, Database
from store.db.reading.hashes import position_parameters
from store.db.reading.select import FRAME, MESSAGE_AT
from store.db.replication import cover_what_is_visible, waiting_for_standby
from store.messages.transfer import transferred

MAX_LOADED_IDS: Final = 4_096
"""IDs of one statement that reads messages."""

MAX_SOUGHT_IDS: Final = 16_384
"""IDs of one statement that only looks for them."""

_ROWS_PER_VALUE: Final = 256

_WANTED: Final = "unnest(%(ts)b::bigint[], %(hash)b::bytea[]) with ordinality as k(ts, hash, n)"

# All three values of a row list the same messages in the same order, whichever that is.
_LOAD: Final = f"""
select string_agg(int4send(m.place), ''::bytea), string_agg(int4send(m.bytes), ''::bytea),
       string_agg({FRAME.expression}, ''::bytea)
           filter (where m.total <= %(max_bytes)b::bigint or m.total = m.bytes)
from (
    select m.*, sum(m.bytes) over (order by m.place) as total
    from (
        select k.n::int as place, ({FRAME.size})::int as bytes,
               m.hash, m.head, m.payload, m.tail
        from {_WANTED} cross join {MESSAGE_AT}
    ) m
) m
group by (m.place - 1) / {_ROWS_PER_VALUE}
"""

_SEEK: Final = f"""
select string_agg(int4send(k.n::int), ''::bytea) from {_WANTED} cross join lateral (
    select from storenode.messages n
    where n.ts = k.ts and n.hash = k.hash
      and n.ts >= %(low)b::bigint and n.ts <= %(high)b::bigint offset 0
) m
"""

_NUMBER: Final = Struct(">i")

_Part = tuple[list[int], list[int], bytes]
"""Places, from 1 on, and sizes of the messages of a part, and the data of those that fit."""


class TransferReader:
    """`store.domain.ports.TransferReads` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        """Messages to send (see `store.domain.ports.TransferReads`)."""
        portion = ids[:MAX_LOADED_IDS]
        if not len(portion):
            return []
        parameters = position_parameters(portion.pairs()) | {"max_bytes": max_bytes}
        parts = [
            (_numbers(places), _numbers(sizes), joined or b"")
            for places, sizes, joined in await self._database.rows(
                _LOAD, parameters, self._database.bulk_pool
            )
        ]
        end = _first_left_out(parts, max_bytes) or len(portion) + 1
        found = {place: transferred(frame) for part in parts for place, frame in _cut(part, end)}
        return [found.get(place) for place in range(1, end)]

    async def held(self, ids: SyncIds) -> list[bool]:
        """Which are held (see `store.domain.ports.TransferReads`)."""
        held = [False] * len(ids)
        for start in range(0, len(ids), MAX_SOUGHT_IDS):
            for place in await self._seek(ids[start : start + MAX_SOUGHT_IDS]):
                held[start + place - 1] = True
        return held

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


def _first_left_out(parts: list[_Part], max_bytes: int) -> int | None:
    sizes = sorted(pair for places, sizes, _ in parts for pair in zip(places, sizes, strict=True))
    totals = accumulate(size for _, size in sizes)
    for (place, size), total in zip(sizes, totals, strict=True):
        if total > max_bytes and total != size:
            return place
    return None


def _cut(part: _Part, end: int) -> Iterator[tuple[int, bytes]]:
    """Take the data of a part to pieces: the place and the frame of those that fit."""
    places, sizes, joined = part
    start = 0
    for place, size in zip(places, sizes, strict=True):
        if place < end:
            yield place, joined[start : start + size]
            start += size
