"""Fingerprints of slices of time: how many messages, and the XOR of their hashes.

A hash is four 64-bit words, ``h0`` to ``h3``, each little-endian and signed, as in the database's
``buckets``; so a fingerprint consists of five aggregates of columns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from pyspark.sql import Row

from reconcile.summaries.buckets import TimeBuckets

T = TypeVar("T")

XOR_WORDS: Final = ("x0", "x1", "x2", "x3")


class Fingerprint(NamedTuple):
    """A number of messages and the XOR of their hashes, as signed words."""

    messages: int
    x0: int
    x1: int
    x2: int
    x3: int

    def joined(self, other: Fingerprint) -> Fingerprint:
        """Return the fingerprint of two disjoint sets of messages together."""
        words = (one ^ two for one, two in zip(self[1:], other[1:], strict=True))
        return Fingerprint(self.messages + other.messages, *words)

    @property
    def hex(self) -> str:
        """The XOR as 64 hexadecimal digits, in the order of a hash's bytes."""
        return struct.pack("<4q", *self[1:]).hex()


NOTHING: Final = Fingerprint(0, 0, 0, 0, 0)
Fingerprints = dict[int, Fingerprint]
"""Fingerprints by the start of their slice, in nanoseconds since the epoch."""


def collected(rows: Iterable[Row]) -> Fingerprints:
    """Return the fingerprints that rows of Spark have; a slice may be in several rows.

    Damaged rows: one without a time is in no slice, and a word that is null counts as 0.
    """
    found: Fingerprints = {}
    for row in rows:
        if row["start_ns"] is not None:
            one = Fingerprint(row["count"], *(row[word] or 0 for word in XOR_WORDS))
            found[row["start_ns"]] = found.get(row["start_ns"], NOTHING).joined(one)
    return found


def of_buckets(buckets: TimeBuckets) -> Fingerprints:
    """Return the fingerprints of the database's summaries, without slices that are empty."""
    words = buckets.xors.view("<i8").tolist()
    rows = zip(buckets.starts.tolist(), buckets.counts.tolist(), words, strict=True)
    found = {start: Fingerprint(count, *xor) for start, count, xor in rows}
    return {start: each for start, each in found.items() if each != NOTHING}


def coarser(fingerprints: Fingerprints, length_ns: int) -> Fingerprints:
    """Return the fingerprints of slices of ``length_ns``, a multiple of the given length."""
    found: Fingerprints = {}
    for start, each in fingerprints.items():
        slot = start // length_ns * length_ns
        found[slot] = found.get(slot, NOTHING).joined(each)
    return found


def differing(one: Mapping[int, T], other: Mapping[int, T]) -> list[int]:
    """Return the starts of the slices that are not the same on both sides, ascending."""
    starts = one.keys() | other.keys()
    return sorted(start for start in starts if one.get(start) != other.get(start))


def short_hours(wanted: Fingerprints, stored: Fingerprints) -> list[int]:
    """Return the hours that lack something: they have fewer messages, or as many others."""
    return sorted(
        hour
        for hour, each in wanted.items()
        if stored.get(hour, NOTHING).messages <= each.messages and stored.get(hour) != each
    )
