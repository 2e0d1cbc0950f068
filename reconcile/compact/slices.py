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
from typing import Final

import numpy as np

from reconcile import kernel
from reconcile.compact.frames import Cut, cut_bytes
from reconcile.compact.keys import SHORT_MASK, ShortKey, tally
from reconcile.compact.limits import SIFTED_BYTES
from reconcile.compact.plan import Slicing
from reconcile.compact.sizing import Ordinary
from reconcile.errors import MalformedCompact
from reconcile.ids import HASH_DTYPE, HASH_WORDS, Bools, Ints, SyncId, SyncIds, Words
from reconcile.index import IndexView
from reconcile.index.rows import Rows
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

_BOUND_BITS: Final = 6
_ANCHOR_BOUND_BITS: Final = 13
_SHORT_GAP: Final = 0.05
_LARGE: Final = 4
"""By this part of the usual number of IDs more is looked into."""


@dataclass(frozen=True, slots=True)
class Regions:
    """Parts of a window, in nanoseconds: ascending, and they do not touch.

    Attributes:
        start: ``(n,)``.
        end: ``(n,)``.
    """

    start: Ints
    end: Ints

    @property
    def length(self) -> int:
        """Of all of them."""
        return int((self.end - self.start).sum())

    @classmethod
    def of_window(cls, window: tuple[SyncId, SyncId]) -> Regions:
        """All of a window."""
        (start, _), (end, last) = window
        if any(last):
            end = min(end + 1, MAX_TIMESTAMP_NS)
        return cls(np.array([start]), np.array([max(end, start)]))

    @classmethod
    def joined(cls, lower: Ints, upper: Ints) -> Regions:
        """Of ascending slices, of which some touch."""
        apart = (lower[1:] != upper[:-1]).nonzero()[0]
        if not len(apart):
            return cls(lower[:1], upper[-1:])
        starts, ends = np.concatenate(([0], apart + 1)), np.append(apart, len(lower) - 1)
        return cls(lower[starts], upper[ends])

    def collapsed(self, times: Ints, region: Ints) -> Ints:
        """Times, of regions, as times without what is between these; none is past its region."""
        before = (self.end - self.start).cumsum() - (self.end - self.start)
        found: Ints = before[region] + np.minimum(times, self.end[region]) - self.start[region]
        return found

    def is_edge(self, bounds: Ints) -> Bools:
        """``(n,)``: are bounds, as ``collapsed`` gives them, where a region ends."""
        ends = (self.end - self.start).cumsum()
        at = np.minimum(ends.searchsorted(bounds), len(ends) - 1)
        return np.asarray(ends[at] == bounds)

    def at_edge(self, lower: Ints, upper: Ints) -> Bools:
        """``(n,)``: do slices, all of them in regions, begin or end where a region does."""
        region = self.start.searchsorted(lower, "right") - 1
        return np.asarray((self.start[region] == lower) | (self.end[region] == upper))

    def edges(self, bounds: Ints) -> tuple[Ints, Ints]:
        """Lower and upper times of the slices that bounds, as ``collapsed`` gives them, make."""
        lengths = self.end - self.start
        ends = lengths.cumsum()
        region = ends.searchsorted(bounds, "right")
        times = self.start[region] + bounds - (ends - lengths)[region]
        every = _ascending(np.concatenate((times, self.start, self.end)))
        inside = np.ones(len(every), np.bool_)
        inside[every.searchsorted(self.end)] = False
        inside = inside[:-1]
        return every[:-1][inside], every[1:][inside]


NO_REGION: Final = Regions(np.array([-1]), np.array([-1]))
"""At whose edge no slice is."""


@dataclass(frozen=True, slots=True)
class Slices:
    """What one side has in slices.

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
        """From what compiled code says of cuts: all columns, one behind the other.

        Those of each region ascend, its edges included; what is between a cut and the one before
        stands beside the later one.
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

    @classmethod
    def of_columns(cls, columns: bytes) -> Slices:
        """From what compiled code says of slices: all columns, one behind the other."""
        rows = np.frombuffer(columns, np.int64).reshape(6, -1)
        lower, upper, low, high, prints, balances = rows
        return cls(lower, upper, low, high, prints.view(np.uint64), balances)

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def items(self) -> int:
        """IDs in all of them."""
        return int((self.high - self.low).sum())

    def items_in(self, rows: Bools) -> int:
        """IDs in some of them."""
        return int((self.high - self.low)[rows].sum())


@dataclass(frozen=True, slots=True)
class Compared:
    """What one side has in slices, beside what the other one says that it has there.

    Attributes:
        differs: ``(n,)``, in which slices the sides certainly differ; all of them without prints.
        chosen: just these slices; prints and balances are by which they differ, as far as the
            other side has said its prints, and above that the own ones.
        equal: how many IDs the other slices have, but for those at an edge of a region.
    """

    differs: Bools
    chosen: Slices
    equal: Ordinary


@dataclass(frozen=True, slots=True)
class Sifted:
    """The IDs of slices that differ, after single differences were found by their prints.

    Attributes:
        low: ``(n,)`` places; where a single ID explains a difference, of this ID.
        high: ``(n,)``.
        shorts: the short IDs between them.
        told: ``(n,)``: which row of these explains a difference, or -1.
    """

    low: Ints
    high: Ints
    shorts: Words
    told: Ints


def _ascending(numbers: Ints) -> Ints:
    """The same numbers in order, each once."""
    numbers = np.sort(numbers, kind="stable")
    first = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=first[1:])
    return numbers[first]


class Held:
    """What one side has in the window of a session.

    Attributes:
        rows: the index.
        low: the place of the first ID in the window.
        high: the place behind the last one.
        xor: of all hashes between, ``(4,)``.
        regions: the whole window.
    """

    def __init__(self, view: IndexView, window: tuple[SyncId, SyncId]) -> None:
        self.rows: Rows = view.rows
        upper = max(window)
        self.low, self.high, self.xor = self.rows.between_bounds(window[0], upper)
        self.regions = Regions.of_window(window)
        chunks = self.rows.chunks
        # As a bound the last time there is means the end: what is before an ID of it says nothing.
        self._by_anchors = not chunks or chunks[-1].last < MAX_TIMESTAMP_NS

    @property
    def count(self) -> int:
        """IDs in the window."""
        return self.high - self.low

    @property
    def whole(self) -> Slices:
        """The window as one slice, in which the sides differ."""
        low, high = np.array([self.low]), np.array([self.high])
        start, end = self.regions.start, self.regions.end
        return Slices(start, end, low, high, np.zeros(1, np.uint64), np.zeros(1, np.int64))

    def counts(self, slices: Slices, usual: int) -> Ints:
        """IDs in slices; where many have one time they count as no more than is usual.

        A slice is not cut inside a nanosecond, and so it may be large without a gap.
        """
        counts = slices.high - slices.low
        most = usual + usual // _LARGE
        if len(counts) and int(counts.max()) > most:
            large = (counts > most).nonzero()[0]
            middle = self.rows.timestamps(slices.low[large] + counts[large] // 2)
            alike = self.rows.time_ranks(middle, "right") - self.rows.time_ranks(middle, "left")
            counts[large] -= np.maximum(np.minimum(alike, counts[large]) - usual, 0)
        return counts

    def cut(self, regions: Regions, key: ShortKey, wanted: Slicing) -> tuple[Slices, bytes]:
        """About so many slices of equal counts, and as a frame has them.

        Anchored bounds are where an index keeps what runs up to them, if both sides have the ID
        there; they take a byte more each.
        """
        if kernel.compiled is not None:
            said = kernel.compiled.cut(*self._columns(regions, key, wanted))
            if said is not None:
                return Slices.of_cuts(said[1], regions), said[0]
        anchored = wanted.anchored and self._by_anchors
        exponent, multiples = self.quantiles(regions, wanted.count, anchored=anchored)
        bounds = multiples << exponent
        multiples = multiples[(bounds < regions.length) & ~regions.is_edge(bounds)]
        own = self.slices(*regions.edges(multiples << exponent), key)
        cut = Cut(exponent, multiples, own.prints, wanted.print_bytes, own.balances)
        return own, cut_bytes(cut)

    def compare(self, cut: Cut, regions: Regions, key: ShortKey) -> Compared:
        """Slices of the other side beside what is here.

        Raises:
            MalformedCompact: a bound is outside of regions, or at an edge of one.
        """
        bounds = cut.multiples << cut.exponent
        if len(bounds) and bounds[-1] >= regions.length:
            raise MalformedCompact(0, "A bound is outside of what is to be cut into slices")
        lower, upper = regions.edges(bounds)
        if not len(lower) == len(upper) == len(cut.balances):
            raise MalformedCompact(0, "There are fewer slices than rows of what is in them")
        own = self.slices(lower, upper, key)
        apart = own.balances - cut.balances
        mask = np.uint64(SHORT_MASK >> (48 - 8 * cut.print_bytes))
        prints = own.prints ^ cut.prints
        differs = ((prints & mask) != 0) | (apart != 0)
        if not cut.print_bytes:
            differs = np.ones(len(own), np.bool_)
        lower, upper, low, high = own.lower, own.upper, own.low, own.high
        chosen = Slices(
            lower[differs],
            upper[differs],
            low[differs],
            high[differs],
            prints[differs],
            apart[differs],
        )
        counts = self.counts(own, own.items // max(1, len(own)))
        equal = ~(differs | regions.at_edge(lower, upper))
        return Compared(differs, chosen, Ordinary.of(counts[equal]))

    def compare_quickly(
        self, unread: tuple[bytes, int], regions: Regions, key: ShortKey, wanted: Slicing
    ) -> Compared | None:
        """The same of slices with which a frame ends, from a place on, in one compiled call.

        At most so many bounds, which may be anchored. None: it is for ``compare``.
        """
        if kernel.compiled is None:
            return None
        columns = self._columns(regions, key, wanted)
        said = kernel.compiled.compare(*columns, *unread)
        if said is None:
            return None
        chosen, differs, *equal = said
        which = np.frombuffer(differs, np.bool_)
        return Compared(which, Slices.of_columns(chosen), Ordinary(*equal))

    def sift(self, compared: Slices, key: ShortKey) -> Sifted:
        """What is in slices that differ, with prints that are cut to ``SIFTED_BYTES``.

        Where sides differ in one ID, it is the one whose short ID ends like the XOR of both prints.
        """
        if kernel.compiled is not None:
            columns = compared.low, compared.high, key.column, compared.prints, compared.balances
            *found, count = kernel.compiled.sift(self.rows.handle, *columns)
            low, high, told = (np.frombuffer(column, np.int64) for column in found[:3])
            return Sifted(low, high, np.frombuffer(found[3], np.uint64, count), told)
        low, high, apart = compared.low.copy(), compared.high.copy(), compared.balances
        told = np.full(len(low), -1)
        shorts = key.of_places(self.rows, low, high)
        ends = (high - low).cumsum()
        interval = np.repeat(np.arange(len(low)), high - low)
        mask = np.uint64((1 << 8 * SIFTED_BYTES) - 1)
        alike = ((shorts ^ compared.prints[interval]) & mask == 0).nonzero()[0]
        owners = interval[alike]
        only = (np.bincount(owners, minlength=len(low)) == 1) & (np.abs(apart) == 1)
        alike, owners = alike[only[owners]], owners[only[owners]]
        places = low[owners] + alike - (ends - high + low)[owners]
        if len(places):
            weight = 1 - 2 * (self.rows.hashes(places)[:, 0] & 1).astype(np.int64)
            same = weight == apart[owners]
            alike, owners, places = alike[same], owners[same], places[same]
        explained = np.zeros(len(low), np.bool_)
        explained[owners] = True
        kept = ~explained[interval]
        kept[alike] = True
        told[owners] = (kept.cumsum() - 1)[alike]
        low[owners], high[owners] = places, places + 1
        return Sifted(low, high, shorts[kept], told)

    def tally(self, regions: Regions, key: ShortKey) -> Ints:
        """The balances of all short IDs in regions, by bits."""
        return tally(key.of_places(self.rows, *self._places(regions)))

    def gather(self, low: Ints, high: Ints, at: Ints) -> tuple[SyncIds, Words]:
        """The IDs at ascending rows of what intervals of places have together; XOR of hashes."""
        if kernel.compiled is None:
            ends = (high - low).cumsum()
            interval = ends.searchsorted(at, "right")
            ids = self.rows.take(low[interval] + at - (ends - high + low)[interval])
            return ids, np.asarray(np.bitwise_xor.reduce(ids.words, axis=0))
        ids = SyncIds(np.empty(len(at), np.int64), np.empty((len(at), HASH_BYTES), HASH_DTYPE))
        xor = np.empty((1, HASH_WORDS), np.uint64)
        columns = ids.timestamps, ids.hashes, xor
        kernel.compiled.gather(self.rows.handle, low, high, at, *columns)
        return ids, xor[0]

    def _columns(
        self, regions: Regions, key: ShortKey, wanted: Slicing
    ) -> tuple[kernel.RowsHandle, tuple[kernel.Column, ...], *tuple[kernel.Column, ...]]:
        anchored = wanted.anchored and self._by_anchors
        sums, bases = self.rows.sums(anchored=anchored), self.rows.balances()[1]
        numbers = np.array((self.low, self.high, wanted.count, wanted.print_bytes, anchored))
        handle = self.rows.handle
        return handle, sums, numbers, bases, key.column, regions.start, regions.end

    def quantiles(
        self, regions: Regions, count: int, *, anchored: bool = False
    ) -> tuple[int, Ints]:
        """Bounds of about so many slices of equal counts: an exponent of 2, and multiples of it."""
        low, high = self._places(regions)
        total = int((high - low).sum())
        ranks = np.arange(1, count) * total // max(count, 1)
        ends = (high - low).cumsum()
        region = np.minimum(ends.searchsorted(ranks, "right"), len(ends) - 1)
        places = low[region] + ranks - (ends - high + low)[region]
        if not total:
            return 0, np.empty(0, np.int64)
        if anchored:
            places = self.rows.anchored(places, total // (2 * count))
        times = _ascending(regions.collapsed(self.rows.timestamps(places), region))
        gaps = times[1:] - times[:-1]
        rank = int(_SHORT_GAP * len(gaps))
        short = int(np.partition(gaps, rank)[rank]) if len(gaps) else 0
        kept = _ANCHOR_BOUND_BITS if anchored else _BOUND_BITS
        exponent = max(0, short.bit_length() - kept)
        multiples = _ascending(times >> exponent)
        return exponent, multiples[multiples > 0]

    def slices(self, lower: Ints, upper: Ints, key: ShortKey) -> Slices:
        """What is in slices, which ascend and do not overlap."""
        low = np.arange(len(lower))
        if len(lower):
            low[1:] += (lower[1:] != upper[:-1]).cumsum()
        high = low + 1
        times = np.empty(int(high[-1]) + 1 if len(high) else 0, np.int64)
        times[low], times[high] = lower, upper
        places, prints, balances = self._cuts(times, key)
        return Slices(
            lower,
            upper,
            places[low],
            places[high],
            prints[high] ^ prints[low],
            balances[high] - balances[low],
        )

    def _places(self, regions: Regions) -> tuple[Ints, Ints]:
        low = self._clipped(self.rows.time_ranks(regions.start, "left"), regions.start)
        return low, self._clipped(self.rows.time_ranks(regions.end, "left"), regions.end)

    def _clipped(self, places: Ints, times: Ints) -> Ints:
        places[times == MAX_TIMESTAMP_NS] = len(self.rows)
        return np.minimum(np.maximum(places, self.low), self.high)

    def _cuts(self, times: Ints, key: ShortKey) -> tuple[Ints, Words, Ints]:
        """Of ascending times: places, and what runs up to these, short IDs and balances."""
        places = self._clipped(self.rows.time_ranks(times, "left"), times)
        running = self.rows.running(places)
        prints = key.of_hashes(running.view(np.uint8).reshape(len(times), -1))
        return places, prints, self.rows.balances_to(places)
