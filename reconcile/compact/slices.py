"""Slices of a window by time: where they are, what is in them, how much of it differs.

A *region* is a part of the window in which the sides differ. Bounds of slices lie on the time
axis without what is between regions, and are multiples of a power of two there: so most take
one byte. Edges of regions are bounds too. A slice saves work and does not have to separate
anything, so no bound is inside a nanosecond.

The *balance* of a slice is the sum of +1 or -1 over its IDs, by the lowest bit of the first byte of
the hash. If two sides differ in d IDs of a slice, the square of the difference of their balances
is d on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from reconcile import kernel
from reconcile.compact.frames import (
    MAX_FIRST_SLICES,
    MAX_SLICES,
    SlicesFrame,
    decode_balances,
    malformed,
)
from reconcile.compact.keys import ShortKey, balance_bits
from reconcile.compact.plan import CountRange, SliceSums, Slicing
from reconcile.ids import HASH_DTYPE, HASH_WORDS, Bools, Ints, SyncId, SyncIds, Words
from reconcile.index import IndexView
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

FIRST_PRINT_BYTES: Final = 2
"""Bytes of a print in an offer."""

_MOST_USUAL: Final = 1 << 40
"""A peer may claim any count; up to this one, sums of counts fit a column."""


@dataclass(frozen=True, slots=True)
class Regions:
    """Parts of a window, in nanoseconds: ascending, not empty, and they do not touch.

    Attributes:
        start: ``(n,)``.
        end: ``(n,)``.
    """

    start: Ints
    end: Ints

    @classmethod
    def of_window(cls, window: tuple[SyncId, SyncId]) -> Regions:
        """Return all of a window as one region."""
        (start, _), (end, last) = window
        if any(last):
            end = min(end + 1, MAX_TIMESTAMP_NS)
        return cls(np.array([min(start, end - 1)]), np.array([end]))

    @classmethod
    def join(cls, lower: Ints, upper: Ints) -> Regions:
        """Return the regions of ascending slices, of which some touch."""
        apart = (lower[1:] != upper[:-1]).nonzero()[0]
        if not len(apart):
            return cls(lower[:1], upper[-1:])
        starts, ends = np.concatenate(([0], apart + 1)), np.append(apart, len(lower) - 1)
        return cls(lower[starts], upper[ends])


NO_REGION: Final = Regions(np.array([-1]), np.array([-1]))
"""A region at whose edge no slice is."""


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of one side.

    Attributes:
        lower: ``(n,)`` times, ascending.
        upper: ``(n,)``.
        low: ``(n,)`` places.
        high: ``(n,)``.
        prints: ``(n,)``, the XOR of the short IDs.
        balances: ``(n,)``.
    """

    lower: Ints
    upper: Ints
    low: Ints
    high: Ints
    prints: Words
    balances: Ints

    @classmethod
    def of_cuts(cls, columns: bytes, regions: Regions) -> Slices:
        """Return slices from the kernel's cuts: all columns, one behind the other.

        The cuts of each region ascend, its edges included; the print and balance between a cut and
        the one before are in the row of the later one.
        """
        cuts = np.frombuffer(columns, np.int64).reshape(4, -1)
        lower, upper = cuts[:, :-1], cuts[:, 1:]
        if len(regions.start) != 1:
            inside = np.ones(len(cuts[0]), np.bool_)
            inside[cuts[0].searchsorted(regions.start, "right") - 1] = False
            ends = inside.nonzero()[0]
            lower, upper = cuts.take(ends - 1, axis=1), cuts.take(ends, axis=1)
        prints, balances = upper[2:]
        return cls(lower[0], upper[0], lower[1], upper[1], prints.view(np.uint64), balances)

    def __getitem__(self, rows: Ints) -> Slices:
        times = self.lower.take(rows), self.upper.take(rows)
        places = self.low.take(rows), self.high.take(rows)
        return Slices(*times, *places, self.prints.take(rows), self.balances.take(rows))

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def items(self) -> int:
        """The number of IDs in all of them."""
        return int((self.high - self.low).sum())

    def items_in(self, rows: Bools) -> int:
        """Return the number of IDs in some of them."""
        return int((self.high - self.low)[rows].sum())


@dataclass(frozen=True, slots=True)
class SliceDifferences:
    """The slices of one side, compared with what the other side reports of them.

    Attributes:
        differs: ``(n,)``, in which slices the sides certainly differ; all of them without prints.
        chosen: just these slices; prints and balances are the differences, as far as the other
            side has sent its prints, and above that the own ones.
        equal: the counts of the other slices, but for those at an edge of a region.
        bits_apart: ``(144,)``, where the window could not be cut, the differences of balances by
            bits; else None.
    """

    differs: Bools
    chosen: Slices
    equal: CountRange
    bits_apart: Ints | None = None


@dataclass(frozen=True, slots=True)
class SliceSurvey:
    """Sums over slices that differ.

    Attributes:
        sums: of all of them.
        rest: of those that neither differ in one ID nor are listed.
        has_gap: one of them is in a gap.
        listed: which of them are better named ID by ID; None: none.
    """

    sums: SliceSums
    rest: SliceSums
    has_gap: bool
    listed: Bools | None


class WindowIndex:
    """The IDs of one side in the window of a session.

    Attributes:
        rows: the index.
        low: the place of the first ID in the window.
        high: the place behind the last one.
        xor: the XOR of all hashes between, ``(4,)``.
        regions: the whole window.
    """

    def __init__(self, view: IndexView, window: tuple[SyncId, SyncId]) -> None:
        self.rows = view
        self.low, self.high, self.xor = self.rows.between_bounds(window[0], max(window))
        self.regions = Regions.of_window(window)

    @property
    def count(self) -> int:
        """The number of IDs in the window."""
        return self.high - self.low

    @property
    def whole(self) -> Slices:
        """The window as one slice, in which the sides differ."""
        low, high = np.array([self.low]), np.array([self.high])
        start, end = self.regions.start, self.regions.end
        return Slices(start, end, low, high, np.zeros(1, np.uint64), np.zeros(1, np.int64))

    def cut(self, regions: Regions, key: ShortKey, wanted: Slicing) -> tuple[Slices, bytes]:
        """Cut regions into slices of about equal counts; return them and their encoding."""
        encoded, columns = kernel.require().cut(*self._columns(regions, key, wanted))
        return Slices.of_cuts(columns, regions), encoded

    def compare(self, frame: SlicesFrame, regions: Regions, key: ShortKey) -> SliceDifferences:
        """Compare the slices of the other side with the own ones.

        Raises:
            MalformedCompactError: the bytes are no such slices.
        """
        plan = Slicing(MAX_FIRST_SLICES - 1, FIRST_PRINT_BYTES)
        if frame.head is not None:
            plan = Slicing(MAX_SLICES, frame.head.print_bytes)
        columns = self._columns(regions, key, plan)
        found = kernel.require().compare(*columns, frame.data, frame.at)
        if found is None:
            raise malformed(frame.data)
        cuts, differs, *equal, end = found
        bits = None
        if frame.head is not None and len(differs) == len(regions.start):
            bits = self.balance_bits(regions, key) - decode_balances(frame.data, end)
        elif end != len(frame.data):
            raise malformed(frame.data)
        flags = np.frombuffer(differs, np.bool_)
        chosen = Slices.of_cuts(cuts, regions)[flags.nonzero()[0]]
        return SliceDifferences(flags, chosen, CountRange(*equal), bits)

    def survey(
        self,
        compared: SliceDifferences,
        single: Bools,
        usual: int,
        regions: Regions,
        *,
        most_listed: int = 0,
    ) -> SliceSurvey:
        """Sum up slices that differ.

        Args:
            compared: the slices.
            single: which seem to differ in one ID.
            usual: how many IDs the peer has in a slice.
            regions: where a slice at an edge may be small anyway.
            most_listed: the most IDs to list, of slices that are not single.
        """
        chosen = compared.chosen
        listed = np.empty(len(chosen), np.bool_)
        numbers = np.array((min(usual, _MOST_USUAL), most_listed, *compared.equal))
        sums, rest, gap, some = kernel.require().survey_slices(
            self.rows.handle,
            *(chosen.lower, chosen.upper, chosen.low, chosen.high, chosen.balances),
            *(single, regions.start, regions.end, numbers, listed),
        )
        found = SliceSums(*sums), SliceSums(*rest)
        return SliceSurvey(*found, bool(gap), listed if some else None)

    def sift(self, compared: Slices, key: ShortKey) -> tuple[Ints, Ints, Words, Ints]:
        """Find single differences of slices, with prints that are cut to ``EXACT_PRINT_BYTES``.

        Where sides differ in one ID, it is the one whose short ID ends like the XOR of both prints.

        Returns:
            ``(n,)`` places from and to, where a single ID explains a difference of this ID; the
            short IDs between them; ``(n,)`` which row of these explains a difference, or -1.
        """
        columns = compared.low, compared.high, key.column, compared.prints, compared.balances
        low, high, single = np.empty((3, len(compared)), np.int64)
        shorts = np.empty(compared.items, np.uint64)
        count = kernel.require().sift(self.rows.handle, *columns, low, high, single, shorts)
        return low, high, shorts[:count], single

    def balance_bits(self, regions: Regions, key: ShortKey) -> Ints:
        """Return the balances of all short IDs in regions, by bits."""
        low, high = (self._places(times) for times in (regions.start, regions.end))
        return balance_bits(key.of_places(self.rows, low, high))

    def gather(self, low: Ints, high: Ints, at: Ints) -> tuple[SyncIds, Words]:
        """Return the IDs at ascending rows of intervals of places, and the XOR of their hashes."""
        ids = SyncIds(np.empty(len(at), np.int64), np.empty((len(at), HASH_BYTES), HASH_DTYPE))
        xor = np.empty((1, HASH_WORDS), np.uint64)
        columns = ids.timestamps, ids.hashes, xor
        kernel.require().gather(self.rows.handle, low, high, at, *columns)
        return ids, xor[0]

    def _columns(self, regions: Regions, key: ShortKey, wanted: Slicing) -> tuple[Any, ...]:
        numbers = np.array((self.low, self.high, wanted.count, wanted.print_bytes))
        handle, samples, bases = self.rows.handle, self.rows.samples, self.rows.balances
        return handle, samples, numbers, bases, key.column, regions.start, regions.end

    def _places(self, times: Ints) -> Ints:
        places = self.rows.time_ranks(times, "left")
        places[times == MAX_TIMESTAMP_NS] = len(self.rows)
        return np.minimum(np.maximum(places, self.low), self.high)
