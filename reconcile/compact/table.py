"""Tables of short IDs, from which the differences of two sets can be peeled (an IBLT).

A cell is one word of 64 bits: the XOR of the short IDs in it, and above them the XOR of their
checks of 16 bits. There is no count: the owner of an ID finds it by a lookup. A cell is *pure* if
it holds one short ID: the check agrees, and the ID belongs into the cell.

An ID is in `places` cells, one in each of as many consecutive segments of `length` cells; its
first segment is one of `windows`. With one window all IDs share their segments. With more of them
the table is spatially coupled: it empties from both ends, and needs fewer cells.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from reconcile import kernel
from reconcile.compact.keys import SHORT_MASK
from reconcile.ids import Ints, Words

MAX_CELLS: Final = 1_048_576
"""Cells of one table, 8 MiB; about 900,000 differences."""

MAX_TABLES: Final = 3
"""Tables that one session may need."""

MAX_PLACES: Final = 5
NOWHERE: Final = -1
SEVERAL: Final = -2

# Differences, and cells with which at most one table of 1,000 does not empty (docs/decisions).
_SIZES: Final = (
    (1, 5),
    (2, 30),
    (3, 35),
    (5, 40),
    (10, 55),
    (20, 75),
    (50, 105),
    (100, 180),
    (200, 328),
    (500, 736),
    (1_000, 1_400),
    (3_000, 4_110),
    (4_000, 5_410),
    (5_000, 6_400),
    (7_000, 8_820),
    (10_000, 12_400),
    (20_000, 24_200),
    (30_000, 35_700),
    (100_000, 116_000),
    (1_000_000, 1_160_000),
)
_KNOWN: Final = tuple(differences for differences, _ in _SIZES)
_FEW: Final = 100
_COUPLED: Final = 4_000
_LARGE: Final = 50_000
_FEW_WINDOWS: Final = 32
_MANY_WINDOWS: Final = 64


@dataclass(frozen=True, slots=True)
class TableShape:
    """The layout of a table.

    Attributes:
        places: cells that an ID is in.
        length: cells of a segment.
        windows: segments that can be an ID's first.
    """

    places: int
    length: int
    windows: int

    @property
    def cells(self) -> int:
        """The number of cells."""
        return (self.windows + self.places - 1) * self.length


def cells_for(differences: float) -> int:
    """Return the cells that a table of ``differences`` needs to empty nearly always."""
    above = min(max(bisect_left(_KNOWN, differences), 1), len(_SIZES) - 1)
    (fewer, least), (more, most) = _SIZES[above - 1 : above + 1]
    part = min(max(differences - fewer, 0) / (more - fewer), 1)
    return ceil(least + part * (most - least))


def shape_for(differences: float) -> TableShape:
    """Return the shape of a table for a number of differences."""
    if not differences:
        return TableShape(1, 1, 1)
    places = MAX_PLACES if differences <= _FEW else MAX_PLACES - 1
    windows = 1
    if differences > _COUPLED:
        windows = _FEW_WINDOWS if differences < _LARGE else _MANY_WINDOWS
    length = -(-cells_for(differences) // (windows + places - 1))
    return TableShape(places, length, windows)


class ShortIdTable:
    """A table in which short IDs are toggled.

    Args:
        shape: its layout.
        salt: the salt of positions, 64 bits.
        cells: its content, ``(shape.cells,)``, which is changed; None: nothing.
        narrow: do without the processor's wide lanes; for tests.
    """

    def __init__(
        self, shape: TableShape, salt: int, cells: Words | None = None, *, narrow: bool = False
    ) -> None:
        self.cells = np.zeros(shape.cells, np.uint64) if cells is None else cells
        numbers = salt, shape.places, shape.length, shape.windows, narrow
        self._column: Words = np.array(numbers, np.uint64)

    def toggle(self, shorts: Words) -> None:
        """Insert short IDs, and remove those that are in it."""
        if len(shorts):
            kernel.require().insert(shorts, self._column, self.cells)

    def peel(self) -> Words | None:
        """Remove all short IDs and return them, ascending; None: the table does not empty."""
        taken = np.empty(len(self.cells), np.uint64)
        count = kernel.require().peel(self.cells, self._column, taken)
        if count < 0 or self.cells.any():
            return None
        found = np.sort(taken[:count])
        return None if has_repeats(found) else found


def has_repeats(ascending: Words | Ints) -> bool:
    """Return True if one of ascending numbers is there more than once."""
    return len(ascending) > 1 and bool((ascending[1:] == ascending[:-1]).any())


def find(wanted: Words, own: Words, mask: int = SHORT_MASK) -> Ints:
    """Return ``(n,)`` the place of each wanted short ID among the own ones, cut by a mask.

    The wanted IDs ascend, each once. ``NOWHERE``: not there; ``SEVERAL``: more than once.
    """
    places = np.empty(len(wanted), np.int64)
    if len(wanted):
        kernel.require().find(wanted, own, np.array([mask], np.uint64), places)
    return places
