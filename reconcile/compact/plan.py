"""The sizes of the compact mode: how many slices, how many bytes of each, how large a table.

Bytes and time of a slice weigh against the time of an ID in a slice that differs: with m slices
there are about d n / m of these. So the best number is the square root of d n over a ratio of
costs. It is largest where bytes of slices are most of a session, and small again for so few
differences that prints are short, and can be sent instead of short IDs if there are many slices.

Balances say how many differences there are where these are scattered: the squares of those by which
slices differ are the number of differences, give or take chance. The fewer slices the differences
are in, the less they say: nothing where a slice is in a gap. There counts do: all slices of the
other side have about as many IDs. The kernel sums both up (`SliceSums`, ``survey.c``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import expm1, isqrt, log, sqrt
from typing import Final, NamedTuple

import numpy as np

from reconcile.compact.frames import EXACT_PRINT_BYTES, MAX_SLICES
from reconcile.ids import Ints

FIRST_SLICES: Final = 16
"""The number of slices in the initiator's first frame."""

MIN_DENSE: Final = 16
"""Differences that a table is made for where nothing but balances says how many there are."""

LARGER: Final = 8
"""The growth of the table that follows one that did not empty."""

_FEW: Final = 30
"""The number of differences from which prints let the initiator find its own by them."""

_MANY: Final = 200
_RATIO_OF_FEW: Final = 50
_RATIO: Final = 80
_RATIO_OF_MANY: Final = 55
_MIN_SLICES: Final = 16
_MIN_SLICES_OF_FEW: Final = 64
_FEW_ITEMS: Final = 32_768
"""The number of IDs up to which the higher minimum of slices holds: in too few slices, balances
cannot count clustered differences."""
_SCATTERED: Final = 3
"""Scattered differences are in at least this many of the initiator's slices."""

_VAGUE: Final = 2.5
"""The ratio of most to estimated differences above which they count as clustered."""

_MIN_VAGUE_SLICES: Final = 128
_MIN_SLICE_ITEMS: Final = 8
_WORTHWHILE_SLICE_ITEMS: Final = 96
"""The number of IDs in a slice below which more slices take more bytes than they save time."""

_DENSE: Final = 20
"""The number of IDs per difference below which prints are useless."""

_DENSE_SLICES: Final = 2_048
_MISSED: Final = 5e-4
"""The probability that a session misses a slice because its print is cut."""


LEAST_UNOFFERED: Final = 16
"""Differences that slices are made for where counts alone say how many there are."""

_UNOFFERED_PART: Final = 4
_UNOFFERED_PRINT_BYTES: Final = 3


@dataclass(frozen=True, slots=True)
class Slicing:
    """A number of slices, and the bytes of each print.

    Without bytes of prints only balances are sent.
    """

    count: int
    print_bytes: int


def slicing(differences: float, most: float, items: int, places: int = 0) -> Slicing:
    """Return the slicing for about ``differences``, at most ``most``, among ``items`` IDs.

    ``places``: the number of the initiator's slices that differ.
    """
    about = max(1, int(differences))
    if about * _DENSE > items:
        return Slicing(max(1, min(_DENSE_SLICES, items // 4)), 0)
    least = _MIN_SLICES_OF_FEW if items <= _FEW_ITEMS else _MIN_SLICES
    if most > _VAGUE * differences:
        least = max(least, _MIN_VAGUE_SLICES)
    least = min(least, max(_MIN_SLICES, items // _MIN_SLICE_ITEMS))
    most_slices = max(least, min(items // _WORTHWHILE_SLICE_ITEMS, MAX_SLICES))
    count = min(max(isqrt(about * items // _ratio(about)), least), most_slices)
    if about >= _FEW:
        return Slicing(count, EXACT_PRINT_BYTES)
    # Two differences in a slice balance each other half the time, and then the print has to tell.
    silent = about * about / (4 * count)
    # Many more do where differences are close together.
    print_bytes = 1 if places >= max(_SCATTERED, about / 2) else 2
    while silent / 256**print_bytes > _MISSED:
        print_bytes += 1
    return Slicing(count, print_bytes)


def _ratio(about: int) -> int:
    if about < _FEW:
        return _RATIO_OF_FEW
    return _RATIO if about < _MANY else _RATIO_OF_MANY


def unoffered(count_apart: int, items: int) -> Slicing:
    """Return the slicing where only the difference of both counts is known.

    Counts may differ by a gap, which takes few slices, or by less than what differs. So slices are
    half as many as for that number: if the differences are scattered, more IDs are read, and bytes
    stay few.
    """
    about = max(count_apart // _UNOFFERED_PART, LEAST_UNOFFERED)
    plan = slicing(about, about, items)
    if not plan.print_bytes:
        return plan
    return replace(plan, print_bytes=max(plan.print_bytes, _UNOFFERED_PRINT_BYTES))


def wanted_bytes(wanted: int, items: int) -> int:
    """Return the bytes of a short ID that is unique among ``items`` in all but 1 in 2,000 cases."""
    return max(1, -(-(wanted * items * 2_000).bit_length() // 8))


_SAFETY: Final = 3.0
"""Standard deviations by which balances may say too little."""

_LARGEST: Final = 8.0
"""The largest factor between the estimate by balances and the size of a table."""

_TRIPLES: Final = 1e-3
"""The probability that three differences in a slice are taken for one."""


class CountRange(NamedTuple):
    """The counts of slices without a gap.

    Attributes:
        slices: how many slices.
        few: the least count, but for some.
        many: the largest one, but for as many.
    """

    slices: int
    few: int
    many: int


class SliceSums(NamedTuple):
    """Sums over some slices that differ.

    Attributes:
        slices: how many there are.
        single: how many of them differ by a balance of 1.
        silent: by a balance of 0; as all that follows, without those that are in a gap.
        in_gaps: the number of differences in gaps.
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
        """The least number of differences: two where they balance each other, else one or more."""
        return self.size + 2.0 * self.silent


def occupied(places: Ints) -> tuple[int, float]:
    """Count the slices from the first that differs to the last one, and estimate differences.

    The estimate is the number of scattered differences that would leave as many slices without one.
    ``places``: which slices differ, ascending.
    """
    if not len(places):
        return 1, 0.0
    slices = int(places[-1] - places[0]) + 1
    return slices, slices * log(slices / max(slices - len(places), 1))


def are_single(sums: SliceSums, places: Ints, net: int) -> bool:
    """Return True if slices that differ by a balance of 1 differ in one ID each, nearly always.

    Three of ``d`` IDs that are scattered over ``m`` slices are in the same one, and have such a
    balance, in one of ``8 m^2 / d (d - 1) (d - 2)`` cases. ``net``: the surplus of own IDs.
    """
    slices, scattered = occupied(places)
    about = max(scattered, sums.at_least)
    if not sums.single or sums.slices < 2 or abs(net) > about:
        return False
    around = slices * (about + 1) / (about - 1)
    return about * (about - 1) * (about - 2) <= 8 * _TRIPLES * around * around


def estimate(sums: SliceSums, slices: int, least: int, *, certain: bool) -> tuple[float, float]:
    """Estimate the number of differences, and the number that a table should be made for.

    ``slices``: the number of all. ``least``: the least number of differences. ``certain``: each of
    the summed slices has one.
    """
    at_least = sums.at_least if certain else sums.size
    about = max(sums.floored, float(least - sums.in_gaps), at_least)
    pairs = (sums.fourth - sums.squares) / 3.0
    alike = float(slices)
    if pairs > 0:
        alike = min(alike, sums.floored * sums.floored / pairs)
    return about + sums.in_gaps, sums.in_gaps + about * _vagueness(about, max(alike, 1.0))


def size_by_bits(apart: Ints) -> float:
    """Return the number of differences that a table should be made for, by the balances of all."""
    about = float(np.square(apart.astype(np.float64)).mean())
    part = 2.0 / 9.0 / len(apart)
    return float(about * (1.0 - part - _SAFETY * sqrt(part)) ** -3)


def _vagueness(about: float, slices: float) -> float:
    """Return the factor by which the balances of ``slices`` slices may underestimate.

    The sum of squares of balances is distributed as chi-squared, with a degree of freedom for each
    slice, of which those with no difference or one are exact. The quantile is Wilson's and
    Hilferty's.
    """
    part = 2.0 / 9.0 * -expm1(-about / slices) / slices
    quantile = 1.0 - part - _SAFETY * sqrt(part)
    return _LARGEST if quantile <= 0.0 else min(quantile**-3, _LARGEST)
