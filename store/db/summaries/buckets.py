"""Summaries of messages in slices of time: how many there are, and the XOR of their hashes.

A batch writes beside its commit what it added per minute, in a packed form: the *delta*. Deltas are
folded into buckets of minutes, hours and days (`store.db.summaries.fold`).

A packed record has `RECORD_BYTES`, little-endian: start of the minute (nanoseconds since the
epoch, signed 64 bits), count (signed 64 bits), and the 32 bytes of the XOR.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from psycopg import sql

from reconcile.summaries.buckets import TimeBuckets
from store.db.arrays import BinaryArray, bigint_column
from store.db.connection import Connection, fetch_rows
from store.db.statements import SQL
from store.domain.partitioning import Bounds
from storenode.message.limits import HASH_BYTES, NS_PER_S

MINUTE_NS: Final = 60 * NS_PER_S
HOUR_NS: Final = 60 * MINUTE_NS
DAY_NS: Final = 24 * HOUR_NS
LEVELS_NS: Final = (MINUTE_NS, HOUR_NS, DAY_NS)
"""Length of the buckets of level 0, 1 and 2; each begins at a multiple of it since the epoch."""

HASH_WORDS: Final = HASH_BYTES // 8
RECORD: Final = np.dtype([("start_ns", "<i8"), ("count", "<i8"), ("xor", "<u8", HASH_WORDS)])
RECORD_BYTES: Final = RECORD.itemsize
_BEGINNING: Final = struct.Struct("<qq")
"""A record up to its XOR."""


def of_rows(length_ns: int, rows: ArrayLike) -> TimeBuckets:
    """Return the buckets that rows of ``buckets`` have: start_ns, count and the words."""
    columns = np.array(rows, "<i8").reshape(-1, 2 + HASH_WORDS)
    words = np.ascontiguousarray(columns[:, 2:]).view("<u8")
    return TimeBuckets(length_ns, columns[:, 0].copy(), columns[:, 1].copy(), words)


def between(buckets: TimeBuckets, low_ns: int, high_ns: int) -> TimeBuckets:
    """Return the buckets that begin in a half-open range of time."""
    return _select(buckets, (buckets.starts >= low_ns) & (buckets.starts < high_ns))


def outside(buckets: TimeBuckets, low_ns: int, high_ns: int) -> TimeBuckets:
    """Return the buckets that do not begin in a half-open range of time."""
    return _select(buckets, (buckets.starts < low_ns) | (buckets.starts >= high_ns))


def coarser(buckets: TimeBuckets, length_ns: int) -> TimeBuckets:
    """Return the buckets of the same messages with a length that is a multiple of theirs."""
    return TimeBuckets.join(length_ns, [buckets])


def _select(buckets: TimeBuckets, wanted: NDArray[np.bool_]) -> TimeBuckets:
    starts, counts = buckets.starts[wanted], buckets.counts[wanted]
    return TimeBuckets(buckets.length_ns, starts, counts, buckets.xors[wanted])


def pack(timestamps: Sequence[int], hashes: Sequence[bytes]) -> bytes:
    """Return the delta of messages, each of which is given once; empty only when there are none.

    ``timestamps`` (nanoseconds) and ``hashes`` (32 bytes each) are columns of the same length, in
    any order.
    """
    if len(hashes) == 1:  # what is published alone, which arrays would cost twenty times as much
        return _BEGINNING.pack(timestamps[0] - timestamps[0] % MINUTE_NS, 1) + hashes[0]
    if not hashes:
        return b""
    words = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, HASH_WORDS)
    start_ns = timestamps[0] - timestamps[0] % MINUTE_NS
    if start_ns <= min(timestamps) <= max(timestamps) < start_ns + MINUTE_NS:
        # As what is published together mostly is; to group it would cost three times as much.
        xor: NDArray[np.uint64] = np.bitwise_xor.reduce(words, axis=0)
        return _BEGINNING.pack(start_ns, len(hashes)) + xor.tobytes()
    times = np.array(timestamps, np.int64)
    minutes = TimeBuckets.total(MINUTE_NS, times, np.ones(len(times), np.int64), words)
    records = np.empty(len(minutes), RECORD)
    records["start_ns"], records["count"] = minutes.starts, minutes.counts
    records["xor"] = minutes.xors
    return records.tobytes()


def unpack(deltas: Iterable[bytes]) -> TimeBuckets:
    """Return the buckets of minutes of everything that some deltas are about.

    Raises:
        ValueError: the length of one is not a multiple of `RECORD_BYTES`.
    """
    parts = list(deltas)
    if any(len(part) % RECORD_BYTES for part in parts):
        raise ValueError(f"a packed summary is not a multiple of {RECORD_BYTES} bytes long")
    records = np.frombuffer(b"".join(parts), RECORD)
    return TimeBuckets.total(MINUTE_NS, records["start_ns"], records["count"], records["xor"])


_WORDS: Final = ("x0", "x1", "x2", "x3")


def minutes_of(table: sql.Identifier, bounds: Bounds) -> sql.Composed:
    """Return a query for (start_ns, count, x0, x1, x2, x3) of the messages of a range of time.

    Its bounds are literals, so that partitions are left out when it is planned.
    """
    low, last = sql.Literal(bounds.low), sql.Literal(bounds.high - 1)
    return sql.SQL(SQL.buckets.sum_minutes).format(table=table, low=low, last=last)


def columns(summaries: Sequence[TimeBuckets]) -> list[BinaryArray]:
    """Return start, count and the words of the XOR of some buckets, laid out as parameters."""
    starts = [np.empty(0, np.int64), *(each.starts for each in summaries)]
    counts = [np.empty(0, np.int64), *(each.counts for each in summaries)]
    xors = [np.empty((0, HASH_WORDS), np.uint64), *(each.xors for each in summaries)]
    by_word = np.concatenate(xors).view("<i8").T
    return [bigint_column(each) for each in (np.concatenate(starts), np.concatenate(counts))] + [
        bigint_column(each) for each in by_word
    ]


async def folded_position(connection: Connection) -> int:
    """Return the position up to which commits are folded."""
    ((position,),) = await fetch_rows(connection, SQL.stores.read_folded_position)
    return int(position)
