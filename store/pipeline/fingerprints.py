"""Fingerprints of slices of time: how many messages, and the XOR of their hashes.

A hash is four 64-bit words, ``h0`` to ``h3``, each little-endian and signed, as in the database's
``buckets``; so a fingerprint is five aggregates of whole columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from store.db.summaries.deltas import Buckets
from store.pipeline.limits import DAY_NS, HOUR_NS, MINUTE_NS

HASH_WORDS: Final = ("h0", "h1", "h2", "h3")
XOR_WORDS: Final = ("x0", "x1", "x2", "x3")
LEVELS_NS: Final[Mapping[str, int]] = {"day": DAY_NS, "hour": HOUR_NS, "minute": MINUTE_NS}
"""Lengths of slices by name, coarsest first."""

_WORD_BYTES: Final = 8


class Fingerprint(NamedTuple):
    """The messages of a slice: their number, and the XOR of their hashes as signed words."""

    messages: int
    x0: int
    x1: int
    x2: int
    x3: int

    def joined(self, other: Fingerprint) -> Fingerprint:
        """That of two disjoint sets of messages together."""
        words = (one ^ two for one, two in zip(self[1:], other[1:], strict=True))
        return Fingerprint(self.messages + other.messages, *words)

    @property
    def hex(self) -> str:
        """The XOR as 64 hexadecimal digits, in the order of a hash's bytes."""
        return b"".join(
            word.to_bytes(_WORD_BYTES, "little", signed=True) for word in self[1:]
        ).hex()


ROWS: Final = pa.schema([(name, pa.int64()) for name in ("start_ns", "count", *XOR_WORDS)])
"""A fingerprint as a row: the start of its slice, the number of messages, the XOR."""

NOTHING: Final = Fingerprint(0, 0, 0, 0, 0)
Fingerprints = dict[int, Fingerprint]
"""By start of the slice, in nanoseconds since the epoch."""


def start_of(length_ns: int) -> Column:
    """The start of the slice that the column ``ts`` lies in."""
    return (F.col("ts") - F.col("ts") % F.lit(length_ns)).alias("start_ns")


def add_rows(found: Fingerprints, rows: pa.RecordBatch, length_ns: int) -> None:
    """Add rows that have ``ts`` and the words of their hashes to the slices that they lie in."""
    starts = numbers_of(rows["ts"]) // length_ns * length_ns
    words = [numbers_of(rows[word]) for word in HASH_WORDS]
    if (np.diff(starts) < 0).any():
        order = np.argsort(starts, kind="stable")
        starts, words = starts[order], [word[order] for word in words]
    begins = np.flatnonzero(np.diff(starts, prepend=starts[:1] - 1))
    counts = np.diff(np.append(begins, len(starts)))
    xors = (np.bitwise_xor.reduceat(word, begins) for word in words)
    columns = (each.tolist() for each in (starts[begins], counts, *xors))
    for start, *rest in zip(*columns, strict=True):
        found[start] = found.get(start, NOTHING).joined(Fingerprint(*rest))


def numbers_of(column: pa.Array) -> NDArray[np.int64]:
    """A column of numbers; what is absent counts as 0."""
    filled = column.fill_null(0) if column.null_count else column
    numbers: NDArray[np.int64] = filled.to_numpy(zero_copy_only=False)
    return numbers


def as_rows(found: Fingerprints) -> pa.RecordBatch:
    """The same as `ROWS`, ascending."""
    columns = [sorted(found), *zip(*(each for _, each in sorted(found.items())), strict=True)]
    return pa.record_batch([pa.array(each, pa.int64()) for each in columns], schema=ROWS)


def collected(rows: Iterable[Row]) -> Fingerprints:
    """Fingerprints that workers have computed; slices may occur several times."""
    found: Fingerprints = {}
    for row in rows:
        one = Fingerprint(row["count"], *(row[word] for word in XOR_WORDS))
        found[row["start_ns"]] = found.get(row["start_ns"], NOTHING).joined(one)
    return found


def of_buckets(buckets: Buckets) -> Fingerprints:
    """The same from the database's summaries; slices in which nothing is left are left out."""
    words = buckets.xors.view("<i8").tolist()
    rows = zip(buckets.starts.tolist(), buckets.counts.tolist(), words, strict=True)
    found = {start: Fingerprint(count, *xor) for start, count, xor in rows}
    return {start: each for start, each in found.items() if each != NOTHING}


def coarser(fingerprints: Fingerprints, length_ns: int) -> Fingerprints:
    """The same messages in slices of ``length_ns``, a multiple of the given slices' length."""
    found: Fingerprints = {}
    for start, each in fingerprints.items():
        slot = start // length_ns * length_ns
        found[slot] = found.get(slot, NOTHING).joined(each)
    return found


def differing(one: Fingerprints, other: Fingerprints) -> list[int]:
    """Starts of the slices that are not the same on both sides, ascending."""
    starts = one.keys() | other.keys()
    return sorted(start for start in starts if one.get(start) != other.get(start))
