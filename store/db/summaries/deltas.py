"""Summaries of messages: how many there are in a slice of time, and the XOR of their hashes.

What a batch added is written beside its commit, per minute, in a packed form: the *delta*. Deltas
are folded into buckets of minutes, hours and days (`store.db.summaries.fold`). Bytes and arrays
only; nothing here touches a database.

A packed record has `RECORD_BYTES`, little-endian: start of the minute (nanoseconds since the
epoch, signed 64 bits), count (signed 64 bits), and the 32 bytes of the XOR.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True)
class Buckets:
    """Slices of time with messages in them, ascending by start, each start once.

    ``starts`` (n,) int64 in nanoseconds, ``counts`` (n,) int64, ``xors`` (n, 4) uint64: the 32
    bytes of the XOR as little-endian words.
    """

    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    xors: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.starts)

    def coarser(self, length_ns: int) -> Buckets:
        """The same messages in slices of ``length_ns``, a multiple of this one's length."""
        return _grouped(self.starts // length_ns * length_ns, self.counts, self.xors)

    def without(self, low_ns: int, high_ns: int) -> Buckets:
        """Those that begin before ``low_ns``, or at ``high_ns`` or later."""
        return self._chosen((self.starts < low_ns) | (self.starts >= high_ns))

    def within(self, low_ns: int, high_ns: int) -> Buckets:
        """Those that begin at ``low_ns`` or later, and before ``high_ns``."""
        return self._chosen((self.starts >= low_ns) & (self.starts < high_ns))

    def _chosen(self, wanted: NDArray[np.bool_]) -> Buckets:
        return Buckets(self.starts[wanted], self.counts[wanted], self.xors[wanted])


def pack(timestamps: Sequence[int], hashes: Sequence[bytes]) -> bytes:
    """The delta of messages, each of which is given once; empty only when there are none.

    ``timestamps`` (nanoseconds) and ``hashes`` (32 bytes each) are columns of the same length, in
    any order.
    """
    if len(hashes) == 1:  # what is published alone, which arrays would cost twenty times as much
        return _BEGINNING.pack(timestamps[0] - timestamps[0] % MINUTE_NS, 1) + hashes[0]
    starts = np.array(timestamps, np.int64)
    starts -= starts % MINUTE_NS
    words = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, HASH_WORDS)
    buckets = _grouped(starts, np.ones(len(starts), np.int64), words)
    records = np.empty(len(buckets.starts), RECORD)
    records["start_ns"] = buckets.starts
    records["count"] = buckets.counts
    records["xor"] = buckets.xors
    return records.tobytes()


def unpack(deltas: Iterable[bytes]) -> Buckets:
    """Buckets of minutes of everything that some deltas are about.

    Raises:
        ValueError: the length of one is not a multiple of `RECORD_BYTES`.
    """
    parts = list(deltas)
    if any(len(part) % RECORD_BYTES for part in parts):
        raise ValueError(f"a packed summary is not a multiple of {RECORD_BYTES} bytes long")
    records = np.frombuffer(b"".join(parts), RECORD)
    return _grouped(records["start_ns"], records["count"], records["xor"])


def merged(parts: Iterable[Buckets]) -> Buckets:
    """The messages of several summaries, no message of which is in two, as one summary."""
    held = [each for each in parts if len(each)]
    if not held:
        return Buckets(
            np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, HASH_WORDS), np.uint64)
        )
    return _grouped(
        np.concatenate([each.starts for each in held]),
        np.concatenate([each.counts for each in held]),
        np.concatenate([each.xors for each in held]),
    )


def _grouped(
    starts: NDArray[np.int64], counts: NDArray[np.int64], xors: NDArray[np.uint64]
) -> Buckets:
    if len(starts) and (starts == starts[0]).all():
        xor: NDArray[np.uint64] = np.bitwise_xor.reduce(xors, axis=0)
        return Buckets(starts[:1], counts.sum(keepdims=True), xor[np.newaxis])
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    if not len(first):
        return Buckets(ordered, counts, xors)
    return Buckets(
        ordered[first],
        np.add.reduceat(counts[order], first),
        np.bitwise_xor.reduceat(xors[order], first, axis=0),
    )
