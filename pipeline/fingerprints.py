"""Fingerprints of slices of time: how many messages, and the XOR of their hashes.

A hash is four 64-bit words, ``h0`` to ``h3``, each little-endian and signed, as in the database's
``buckets``; so a fingerprint is five aggregates that Spark computes natively.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from pipeline.limits import DAY_NS, HOUR_NS, MINUTE_NS
from store.db.deltas import Buckets

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


NOTHING: Final = Fingerprint(0, 0, 0, 0, 0)
Fingerprints = dict[int, Fingerprint]
"""By start of the slice, in nanoseconds since the epoch."""


def start_of(length_ns: int) -> Column:
    """The start of the slice that the column ``ts`` lies in."""
    return (F.col("ts") - F.col("ts") % F.lit(length_ns)).alias("start_ns")


def aggregates() -> list[Column]:
    """A fingerprint of a group of rows as columns ``count``, ``x0`` to ``x3``."""
    words = (F.bit_xor(word).alias(xor) for word, xor in zip(HASH_WORDS, XOR_WORDS, strict=True))
    return [F.count(F.lit(1)).alias("count"), *words]


def by_slice(rows: DataFrame, length_ns: int) -> DataFrame:
    """(start_ns, count, x0 … x3) of rows that have ``ts`` and the words of their hashes."""
    return rows.groupBy(start_of(length_ns)).agg(*aggregates())


def collected(rows: Iterable[Row]) -> Fingerprints:
    """Fingerprints that Spark has computed; slices may occur several times."""
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
