"""What was chosen by measuring: how many slices, and how much is sent of each.

Bytes and time of a slice weigh against the time of an ID in a slice that differs: with m slices
there are about d n / m of these. So the best number is the square root of d n over a ratio of
costs. It is largest where bytes of slices are most of a session, and small again for so few
differences that prints are short, and can be told instead of short IDs if there are many slices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt
from typing import Final

from reconcile.compact.limits import MAX_SLICES, SIFTED_BYTES

FIRST_SLICES: Final = 16
"""In the initiator's first frame."""

MIN_DENSE: Final = 16
"""Differences that a table is made for where nothing but balances says how many there are."""

LARGER: Final = 8
"""A table follows one that did not empty, for so many times the differences."""

_FEW: Final = 30
"""From so many differences on prints are long enough for the initiator to find its own ones by."""

_MANY: Final = 200
_RATIO_OF_FEW: Final = 50
_RATIO: Final = 80
_RATIO_OF_MANY: Final = 55
_MIN_SLICES: Final = 16
_MIN_SLICES_OF_FEW: Final = 64
_FEW_ITEMS: Final = 32_768
"""The fewer IDs there are, the fewer slices: in too few of them may be what is close together, so
that balances do not say how much that is."""
_SCATTERED: Final = 3
"""Differences are in so many of the initiator's slices at least if they are scattered."""

_VAGUE: Final = 2.5
"""If there may be so many times more differences than seems: they are close together."""

_MIN_VAGUE_SLICES: Final = 128
_MIN_SLICE_ITEMS: Final = 8
_WORTHWHILE_SLICE_ITEMS: Final = 96
"""More slices than of so many IDs take more bytes than they save time."""

NEAR_ITEMS: Final = 500_000
"""IDs of which a processor's cache holds about as much as it must. Among more of them memory takes
most of the time, and bounds at anchors need less of it."""

ANCHORED_SLICE_ITEMS: Final = 128
"""In slices of fewer IDs there often is no anchor."""

_FAR_ITEMS: Final = 2_000_000
"""For each so many IDs that differ so many times more slices are worth it, at anchors."""

_DENSE: Final = 20
"""If more than one ID in so many differs, nearly every slice would: prints say nothing then."""

_DENSE_SLICES: Final = 2_048
_MISSED: Final = 5e-4
"""How often a session may miss a slice because its print is cut."""


LEAST_UNOFFERED: Final = 16
"""Differences that slices are made for where counts alone say how many there are."""

_UNOFFERED_PART: Final = 4
_UNOFFERED_PRINT_BYTES: Final = 3


@dataclass(frozen=True, slots=True)
class Slicing:
    """How many slices, how many bytes of a print each has, and whether bounds are at anchors.

    Without bytes of prints only balances are sent.
    """

    count: int
    print_bytes: int
    anchored: bool = False


def slicing(differences: float, most: float, items: int, places: int = 0) -> Slicing:
    """For about so many differences, and at most so many, among so many IDs.

    ``places``: so many of the initiator's slices differ.
    """
    about = max(1, int(differences))
    if about * _DENSE > items:
        return Slicing(max(1, min(_DENSE_SLICES, items // 4)), 0)
    if about >= _FEW and items >= NEAR_ITEMS:
        worth = about * items * max(1, items // _FAR_ITEMS)
        count = min(isqrt(worth // _ratio(about)), MAX_SLICES)
        if count * ANCHORED_SLICE_ITEMS <= items:
            return Slicing(count, SIFTED_BYTES, anchored=True)
    least = _MIN_SLICES_OF_FEW if items <= _FEW_ITEMS else _MIN_SLICES
    if most > _VAGUE * differences:
        least = max(least, _MIN_VAGUE_SLICES)
    least = min(least, max(_MIN_SLICES, items // _MIN_SLICE_ITEMS))
    most_slices = max(least, min(items // _WORTHWHILE_SLICE_ITEMS, MAX_SLICES))
    count = min(max(isqrt(about * items // _ratio(about)), least), most_slices)
    if about >= _FEW:
        return Slicing(count, SIFTED_BYTES)
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
    """By which counts differ, among so many IDs, where nothing else is known of differences.

    Counts may differ by a gap, which takes few slices, or by less than what differs. So slices are
    half as many as for so many differences: if these are scattered, more IDs are read, and bytes
    stay few.
    """
    about = max(count_apart // _UNOFFERED_PART, LEAST_UNOFFERED)
    plan = slicing(about, about, items)
    if not plan.print_bytes:
        return plan
    return replace(plan, print_bytes=max(plan.print_bytes, _UNOFFERED_PRINT_BYTES))


def wanted_bytes(wanted: int, items: int) -> int:
    """Bytes of a short ID by which it is found among so many items, but for one in 2,000 cases."""
    return max(1, -(-(wanted * items * 2_000).bit_length() // 8))
