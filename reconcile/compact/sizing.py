"""How many differences a table is made for, and which slices are better named ID by ID.

Balances say it where differences are scattered: the squares of those by which slices differ are the
number of differences, give or take what chance has in store. The fewer slices the differences are
in, the less they say: nothing where a slice is in a gap. There counts do: all slices of the other
side hold about as many IDs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, log, sqrt
from typing import Final, NamedTuple

import numpy as np

from reconcile.ids import Bools, Ints

_SAFETY: Final = 3.0
"""Standard deviations by which balances may say too little."""

_LARGEST: Final = 8.0
"""A table is made for so many times what balances say at most."""

_CREDIBLE: Final = 1.5
"""Where no slice shows how counts vary, gaps have at most so many times the differences that a
balance says which is one larger."""

_LEEWAY: Final = 32
"""A slice may have this part of the usual count more or less: bounds are rounded."""

_GAP: Final = 4
"""A slice is in a gap if its count differs by this part of the usual one."""

_ONE_SIDED: Final = 6
"""It also is if counts differ so many times more than balances: at random both would alike."""

_ROUNDED: Final = 2
"""IDs that a slice has more or less, because equal counts are rounded."""

_ENOUGH: Final = 5
"""Slices without a gap that show how counts vary."""

_OUTSIDE: Final = 2
"""So many of the largest and the least are not looked at, a tenth at most: some that seem to differ
in one ID are in a gap."""

_TRIPLES: Final = 1e-3
"""How often three differences in a slice may be taken for one."""

MOST_USUAL: Final = 1 << 40
"""A peer may say that it has more, and then what counts say fits a column still."""

_NAMED_BYTES: Final = 6
_TABLE_BYTES: Final = 11
"""Of an ID that is named, and of a difference in a table."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """What counts say of slices that differ.

    Attributes:
        least: ``(n,)``, so many differences.
        most: ``(n,)``: and in slices that are in a gap no more than so many; else 0.
        named: ``(n,)``: it takes fewer bytes to name all IDs than to have them in a table.
    """

    least: Ints
    most: Ints
    named: Bools

    def of(self, rows: Bools) -> Gaps:
        """Of some of the slices."""
        return Gaps(self.least[rows], self.most[rows], self.named[rows])

    def but_for(self, rows: Bools) -> Gaps:
        """With nothing said of how many differences some have."""
        return Gaps(self.least * ~rows, self.most * ~rows, self.named)


class Ordinary(NamedTuple):
    """How many IDs slices without a gap have.

    Attributes:
        slices: that were looked at.
        few: the least count, but for some.
        many: the largest one, but for as many.
    """

    slices: int
    few: int
    many: int

    @classmethod
    def of(cls, counts: Ints) -> Ordinary:
        """Of some slices."""
        if not len(counts):
            return cls(0, 0, 0)
        outside = min(_OUTSIDE, len(counts) // 10)
        counts = np.sort(counts)
        return cls(len(counts), int(counts[outside]), int(counts[-1 - outside]))

    @property
    def enough(self) -> bool:
        """Whether they show anything."""
        return self.slices >= _ENOUGH

    def around(self, usual: int) -> tuple[int, int]:
        """The least and the largest count, what is usual included."""
        if not self.enough:
            leeway = usual // _LEEWAY + _ROUNDED
            return usual - leeway, usual + leeway
        return min(usual, self.few) - _ROUNDED, max(usual, self.many) + _ROUNDED


class Sums(NamedTuple):
    """What some slices that differ come to.

    Attributes:
        slices: how many there are.
        single: how many of them differ by a balance of 1.
        silent: by a balance of 0; as all that follows, without those that are in a gap.
        in_gaps: so many differences are in those.
        size: the sum of the balances that they differ by, without sign.
        squares: of their squares.
        fourth: of the squares of these.
        floored: of squares or, where that is more, of what counts say.
    """

    slices: int
    single: int
    silent: int
    in_gaps: int
    size: float
    squares: float
    fourth: float
    floored: float

    @property
    def at_least(self) -> float:
        """Differences, if there is one in each: where they balance each other there are two."""
        return self.size + 2.0 * self.silent

    def credible(self, apart: Ints) -> Sums:
        """With no more in gaps than balances leave room for; ``apart``: of all that is summed up.

        Counts alone say too much where slices of the other side are not of equal counts after all.
        """
        inside = float(np.square(apart.astype(np.float64)).sum()) - self.squares
        most = int(_CREDIBLE * (sqrt(max(inside, 0.0)) + 1.0) ** 2)
        return self._replace(in_gaps=min(self.in_gaps, most))


def summed(apart: Ints, found: Gaps | None) -> Sums:
    """Slices by the balances that they differ by, and what counts say of them."""
    single = int(np.count_nonzero(np.abs(apart) == 1))
    slices, in_gaps = len(apart), 0
    floor = np.zeros(0, np.int64) if found is None else found.least
    if found is not None:
        scattered = found.most == 0
        in_gaps = int(found.most.sum())
        apart, floor = apart[scattered], found.least[scattered]
    size = np.abs(apart).astype(np.float64)
    squares = size * size
    silent = len(size) - int(np.count_nonzero(size))
    floored = np.maximum(squares, floor) if len(floor) else squares
    sums = (float(each.sum()) for each in (size, squares, squares * squares, floored))
    return Sums(slices, single, silent, in_gaps, *sums)


def gaps(apart: Ints, counts: Ints, ordinary: Ordinary, usual: int) -> Gaps | None:
    """Of slices that differ: by which balance, how many IDs here, how many there on average.

    ``ordinary``: how far counts are from what is usual where there is no gap. None: counts say
    nothing.
    """
    few, many = ordinary.around(usual)
    # Beyond what is ordinary by more than half of what that varies, or by a factor of two.
    beside = (many - few) // 2 + 1
    lowest, highest = max(few - beside, few // 2), min(many + beside, 2 * many)
    if not len(counts) or (lowest < int(counts.min()) and int(counts.max()) < highest):
        return None
    least = np.maximum(few - counts, counts - many)
    beyond = (least > 0) & ((counts <= lowest) | (counts >= highest))
    clear = np.abs(counts - usual)
    is_gap = beyond & ((_GAP * clear >= usual) | (clear >= _ONE_SIDED * np.abs(apart)))
    named = is_gap & (_NAMED_BYTES * counts < _TABLE_BYTES * clear)
    return Gaps(least * beyond, (least + many - few) * is_gap, named)


def left_over(net: int, single: int, *, sifted: bool) -> int:
    """How many differences at least are in slices that are left, by the counts of both sides.

    ``net``: so many IDs more are here than there. ``sifted``: those of this side that are the only
    difference of a slice are not among them; ``single`` of them differ in one all the same.
    """
    if not sifted:
        return abs(net)
    # These differ in one of the other side.
    return abs(net + single) + single


def occupied(places: Ints) -> tuple[int, float]:
    """From the first slice that differs to the last one: how many there are, how many differences.

    So many that, if they were scattered there, as many slices would have none. ``places``: which
    slices differ, ascending.
    """
    if not len(places):
        return 1, 0.0
    slices = int(places[-1] - places[0]) + 1
    return slices, slices * log(slices / max(slices - len(places), 1))


def are_single(sums: Sums, places: Ints, net: int) -> bool:
    """Whether slices that differ by a balance of 1 differ in one ID each, nearly always.

    Three of ``d`` IDs that are scattered over ``m`` slices are in the same one, and have such a
    balance, in one of ``8 m^2 / d (d - 1) (d - 2)`` cases. ``net``: so many IDs more are here.
    """
    slices, scattered = occupied(places)
    about = max(scattered, sums.at_least)
    if not sums.single or sums.slices < 2 or abs(net) > about:
        return False
    around = slices * (about + 1) / (about - 1)
    return about * (about - 1) * (about - 2) <= 8 * _TRIPLES * around * around


def estimate(sums: Sums, slices: int, least: int, *, certain: bool) -> tuple[float, float]:
    """How many differences there are about, and how many a table should be made for.

    ``slices``: how many there are in all. ``least``: so many differences at least. ``certain``:
    there is one in each of those that were summed up.
    """
    at_least = sums.at_least if certain else sums.size
    about = max(sums.floored, float(least - sums.in_gaps), at_least)
    pairs = (sums.fourth - sums.squares) / 3.0
    alike = float(slices)
    if pairs > 0:
        alike = min(alike, sums.floored * sums.floored / pairs)
    return about + sums.in_gaps, sums.in_gaps + about * _vagueness(about, max(alike, 1.0))


def tallied(apart: Ints) -> float:
    """How many differences a table should be made for, by balances that are of all of them each."""
    about = float(np.square(apart.astype(np.float64)).mean())
    part = 2.0 / 9.0 / len(apart)
    return float(about * (1.0 - part - _SAFETY * sqrt(part)) ** -3)


def _vagueness(about: float, slices: float) -> float:
    """By which factor balances of so many slices alike may say too little.

    The sum of squares of balances is distributed as chi-squared, with a degree of freedom for each
    slice, of which those with no difference or one are exact. The quantile is Wilson's and
    Hilferty's.
    """
    part = 2.0 / 9.0 * -expm1(-about / slices) / slices
    quantile = 1.0 - part - _SAFETY * sqrt(part)
    return _LARGEST if quantile <= 0.0 else min(quantile**-3, _LARGEST)
