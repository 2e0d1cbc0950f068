"""Frames and topic keys of messages by position, where the message is stored.

Many positions at once are looked up by timestamp alone: one descent of an index for each,
without a join. Other messages may share a timestamp, so such a read is bounded in rows, and in
bytes by leaving large messages out; what it does not bring is looked up exactly, in portions that
are small even if every message has the largest size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Any, Final

from store.db.arrays import bigints
from store.db.pool import Connection
from store.db.reading.hashes import position_parameters
from store.db.reading.select import FRAME
from store.domain.ports import SyncId
from storenode.message.limits import HASH_BYTES

MAX_POSITIONS: Final = 4_096
"""Positions of one read of topics."""

MAX_FRAME_POSITIONS: Final = 2_048
"""Positions of one read of frames by timestamp: at most about 30 MiB."""

EXACT_POSITIONS: Final = 48
"""Positions of one exact read of frames: about 7 MiB if all messages have the largest size."""

_SMALL_PAYLOAD_BYTES: Final = 8 * 1024
"""Messages with larger payloads are left out of reads by timestamp."""

_FRAMES_PER_VALUE: Final = 128

_SHARED_TIMESTAMPS: Final = 1_024
"""Rows of other messages that a read by timestamp may come upon."""

_AT_TIMESTAMPS: Final = """
from storenode.messages m
where m.ts = any(%(ts)b::bigint[]) and m.ts >= %(low)b::bigint and m.ts <= %(high)b::bigint
limit %(limit)b::bigint
"""

_AT_POSITIONS: Final = """
from unnest(%(ts)b::bigint[], %(hash)b::bytea[]) as k(ts, hash)
join storenode.messages m on m.ts = k.ts and m.hash = k.hash
where m.ts >= %(low)b::bigint and m.ts <= %(high)b::bigint
"""

_TOPICS: Final = "select m.hash, uuid_send(m.topic)"
_TOPICS_AT_TIMESTAMPS: Final = _TOPICS + _AT_TIMESTAMPS
_TOPICS_AT_POSITIONS: Final = _TOPICS + _AT_POSITIONS

# The driver takes a few large values more quickly than many rows; very large ones cost more than
# they save, in memory that both sides must first get from the system.
_FRAMES_AT_TIMESTAMPS: Final = f"""
select string_agg(m.hash, ''::bytea), string_agg(int4send({FRAME.size}), ''::bytea),
       string_agg({FRAME.expression}, ''::bytea)
from (
    select m.*, (row_number() over () - 1) / {_FRAMES_PER_VALUE} as part
    from (select m.hash, m.head, m.payload, m.tail {_AT_TIMESTAMPS}) m
) m
where octet_length(m.payload) <= {_SMALL_PAYLOAD_BYTES} group by m.part order by m.part
"""
_FRAMES_AT_POSITIONS: Final = f"select m.hash, {FRAME.expression} {_AT_POSITIONS}"

_SIZE: Final = Struct(">i")
_HASH: Final = Struct(f"{HASH_BYTES}s")

_Found = dict[bytes, bytes]


async def topics_of(connection: Connection, positions: Sequence[SyncId]) -> _Found:
    """Hash -> topic key (16 bytes), of those messages that are held."""
    found: _Found = {}
    for start in range(0, len(positions), MAX_POSITIONS):
        portion = positions[start : start + MAX_POSITIONS]
        rows = await _at_timestamps(connection, _TOPICS_AT_TIMESTAMPS, portion)
        if len(rows) == _most_rows(portion):
            rows = await _at_positions(connection, _TOPICS_AT_POSITIONS, portion)
        found.update(rows)
    return found


async def most_frames(connection: Connection, positions: Sequence[SyncId]) -> list[bytes | None]:
    """Frames for `MAX_FRAME_POSITIONS` at most, in their order.

    None for what is not held or is large, and, where very many messages share timestamps, for
    others too.
    """
    rows = await _at_timestamps(connection, _FRAMES_AT_TIMESTAMPS, positions)
    hashes = b"".join([row[0] for row in rows])
    frames: list[bytes | None] = []
    for _, sizes, joined in rows:
        ends = list(accumulate(size for (size,) in _SIZE.iter_unpack(sizes)))
        frames += map(joined.__getitem__, map(slice, [0, *ends], ends))
    wanted = [digest for _, digest in positions]
    # As a rule all are there and both are in the order of time.
    if hashes == b"".join(wanted):
        return frames
    found = dict(zip((digest for (digest,) in _HASH.iter_unpack(hashes)), frames, strict=True))
    return list(map(found.get, wanted))


async def exact_frames(connection: Connection, positions: Sequence[SyncId]) -> list[bytes | None]:
    """Frames for `EXACT_POSITIONS` at most, in their order; None for those that are not held."""
    found = dict(await _at_positions(connection, _FRAMES_AT_POSITIONS, positions))
    return [found.get(digest) for _, digest in positions]


def _most_rows(positions: Sequence[SyncId]) -> int:
    return len(positions) + _SHARED_TIMESTAMPS


async def _at_timestamps(
    connection: Connection, statement: str, positions: Sequence[SyncId]
) -> list[Any]:
    timestamps = sorted([timestamp for timestamp, _ in positions])
    if not timestamps:
        return []
    parameters = {
        "ts": bigints(timestamps),
        "low": timestamps[0],
        "high": timestamps[-1],
        "limit": _most_rows(positions),
    }
    cursor = await connection.execute(statement, parameters, binary=True)
    return await cursor.fetchall()


async def _at_positions(
    connection: Connection, statement: str, positions: Sequence[SyncId]
) -> list[tuple[bytes, bytes]]:
    if not positions:
        return []
    cursor = await connection.execute(statement, position_parameters(positions), binary=True)
    return await cursor.fetchall()  # type: ignore[return-value]
