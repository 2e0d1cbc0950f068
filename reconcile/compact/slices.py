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
from reconcile.compact.keys import SHORT_MASK, ShortKey
from reconcile.ids import HASH_WORDS, Bools, Ints, SyncId, Words
from reconcile.index import IndexView
from reconcile.index.rows import Rows
from storenode.message.limits import MAX_TIMESTAMP_NS

_BOUND_BITS: Final = 6
_SHORT_GAP: Final = 0.05
_SAFETY: Final = 3.0
"""Standard deviations that a table is made larger by than what the balances say."""


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
        if not len(lower):
            return cls(lower, upper)
        apart = lower[1:] != upper[:-1]
        first = np.concatenate(([True], apart))
        last = np.concatenate((apart, [True]))
        return cls(lower[first], upper[last])

    def collapsed(self, times: Ints) -> Ints:
        """Times in regions as times without what is between these."""
        before = (self.end - self.start).cumsum() - (self.end - self.start)
        region = np.maximum(self.start.searchsorted(times, "right") - 1, 0)
        found: Ints = before[region] + np.minimum(times, self.end[region]) - self.start[region]
        return found

    def is_edge(self, bounds: Ints) -> Bools:
        """``(n,)``: are bounds, as ``collapsed`` gives them, where a region ends."""
        ends = (self.end - self.start).cumsum()
        at = np.minimum(ends.searchsorted(bounds), len(ends) - 1)
        return np.asarray(ends[at] == bounds)

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

    def __len__(self) -> int:
        return len(self.lower)


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
        self.low, self.high = view.rank(window[0]), view.rank(window[1])
        self.high = max(self.low, self.high)
        self.xor: Words = np.zeros(HASH_WORDS, np.uint64)
        if self.high > self.low:
            self.xor = view.fingerprint(*window)[1]
        self.regions = Regions.of_window(window)

    @property
    def count(self) -> int:
        """IDs in the window."""
        return self.high - self.low

    def count_in(self, regions: Regions) -> int:
        """IDs in regions."""
        low, high = self._places(regions)
        return int((high - low).sum())

    def quantiles(self, regions: Regions, count: int) -> tuple[int, Ints]:
        """Bounds of about so many slices of equal counts: an exponent of 2, and multiples of it."""
        low, high = self._places(regions)
        total = int((high - low).sum())
        ranks = np.arange(1, count) * total // max(count, 1)
        ends = (high - low).cumsum()
        region = np.minimum(ends.searchsorted(ranks, "right"), len(ends) - 1)
        places = low[region] + ranks - (ends - high + low)[region]
        if not total:
            return 0, np.empty(0, np.int64)
        times = _ascending(regions.collapsed(self.rows.timestamps(places)))
        gaps = times[1:] - times[:-1]
        rank = int(_SHORT_GAP * len(gaps))
        short = int(np.partition(gaps, rank)[rank]) if len(gaps) else 0
        exponent = max(0, short.bit_length() - _BOUND_BITS)
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
        samples, bases = self.rows.balances()
        if kernel.compiled is not None:
            places, prints = np.empty(len(times), np.int64), np.empty(len(times), np.uint64)
            balances = np.empty(len(times), np.int64)
            limits = np.array([self.low, self.high])
            kernel.compiled.cuts(
                self.rows.handle,
                samples,
                times,
                limits,
                bases,
                key.column,
                places,
                prints,
                balances,
            )
            return places, prints, balances
        places = self._clipped(self.rows.time_ranks(times, "left"), times)
        running = self.rows.running(places)
        prints = key.of_hashes(running.view(np.uint8).reshape(len(times), -1))
        return places, prints, self.rows.balances_to(places)


def differing(ours: Slices, prints: Words | None, balances: Ints, mask: int) -> Bools:
    """``(n,)``: in which slices the sides certainly differ; all of them without prints."""
    if prints is None:
        return np.ones(len(ours), np.bool_)
    return np.asarray(((ours.prints & np.uint64(mask)) != prints) | (ours.balances != balances))


def estimate(
    ours: Slices, balances: Ints, differs: Bools, least: int, *, certain: bool
) -> tuple[float, float]:
    """How many differences there are about, and how many a table should be made for.

    ``least``: so many at least. ``certain``: there is a difference wherever ``differs`` says so.
    """
    apart = np.abs((ours.balances - balances)[differs]).astype(np.float64)
    squares = float((apart**2).sum())
    spread = np.sqrt(max(0.0, 2.0 / 3.0 * float((apart**4 - apart**2).sum())))
    hidden = 2.0 if certain else 0.0
    at_least = float(np.where(apart > 0, apart, hidden).sum())
    about = max(squares, float(least), at_least)
    return about, about + _SAFETY * spread


def print_mask(print_bytes: int) -> int:
    """What is sent of a slice's print."""
    return SHORT_MASK >> (48 - 8 * print_bytes)
