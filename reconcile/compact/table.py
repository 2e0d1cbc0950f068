"""Tables of short IDs, from which the differences of two sets can be peeled (an IBLT).

A cell is one word of 64 bits: the XOR of the short IDs in it, and above them the XOR of their
checks of 16 bits. There is no count: whose an ID is, its owner finds by looking it up. A cell is
*pure* if it holds one short ID: the check agrees, and the ID belongs into the cell.

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
from reconcile.compact.keys import SHORT_BYTES, SHORT_MASK, ShortKey
from reconcile.compact.limits import MAX_CELLS, MAX_WINDOWS
from reconcile.compact.matching import repeats
from reconcile.ids import Ints, Words
from reconcile.index.rows import Rows

MAX_PLACES: Final = 5
NOWHERE: Final = -1
SEVERAL: Final = -2

_FIRST_MIX: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MIX: Final = np.uint64(0x94D049BB133111EB)
_AGAIN: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
_FIELD_BITS: Final = 16
_FIELDS: Final = 4
"""Of a word: each chooses a cell of a segment."""

_WINDOW_FIELD: Final = 1
_FIFTH_FIELD: Final = 2
_CHECK_BITS: Final = np.uint64(48)
"""Of the second word: what is above is the check."""

_SHORT_BITS: Final = np.uint64(8 * SHORT_BYTES)
_MASK: Final = np.uint64(SHORT_MASK)

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
class Shape:
    """How a table is laid out.

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
        """In the whole table."""
        return (self.windows + self.places - 1) * self.length

    @property
    def allowed(self) -> bool:
        """Keeps to the limits."""
        return (
            1 <= self.places <= MAX_PLACES
            and 1 <= self.windows <= MAX_WINDOWS
            and 1 <= self.length <= MAX_CELLS
            and self.cells <= MAX_CELLS
        )

    def column(self, salt: int, *, narrow: bool = False) -> Words:
        """For compiled code; ``narrow``: which is to do without wide lanes."""
        return np.array([salt, self.places, self.length, self.windows, narrow], np.uint64)


def cells_for(differences: float) -> int:
    """Cells with which a table of so many differences nearly always empties."""
    above = min(max(bisect_left(_KNOWN, differences), 1), len(_SIZES) - 1)
    (fewer, least), (more, most) = _SIZES[above - 1 : above + 1]
    part = min(max(differences - fewer, 0) / (more - fewer), 1)
    return ceil(least + part * (most - least))


def shape_for(differences: float) -> Shape:
    """A table for so many differences."""
    if not differences:
        return Shape(1, 1, 1)
    places = MAX_PLACES if differences <= _FEW else MAX_PLACES - 1
    windows = 1
    if differences > _COUPLED:
        windows = _FEW_WINDOWS if differences < _LARGE else _MANY_WINDOWS
    length = -(-cells_for(differences) // (windows + places - 1))
    return Shape(places, length, windows)


class Table:
    """Cells that short IDs are toggled in.

    Args:
        shape: how it is laid out.
        salt: of the positions, 64 bits.
        cells: what is in it, ``(shape.cells,)``; it is changed. None: nothing.
        narrow: do without the processor's wide lanes; for tests.
    """

    def __init__(
        self, shape: Shape, salt: int, cells: Words | None = None, *, narrow: bool = False
    ) -> None:
        self.shape = shape
        self.cells = np.zeros(shape.cells, np.uint64) if cells is None else cells
        self._salt = salt
        self._column = shape.column(salt, narrow=narrow)

    def toggle(self, shorts: Words) -> None:
        """Put short IDs in, and take those out that were in."""
        if not len(shorts):
            return
        if kernel.compiled is not None:
            kernel.compiled.insert(shorts, self._column, self.cells)
            return
        values, at = self._entries(shorts)
        for row in at:
            np.bitwise_xor.at(self.cells, row, values)

    def fill(self, rows: Rows, low: Ints, high: Ints, key: ShortKey) -> Words:
        """Put in, or take out, what is in ascending intervals of places; their short IDs."""
        if kernel.compiled is None:
            shorts = key.of_places(rows, low, high)
            self.toggle(shorts)
            return shorts
        shorts = np.empty(int((high - low).sum()), np.uint64)
        shape, cells = self._column, self.cells
        kernel.compiled.fill(rows.handle, low, high, key.column, shape, cells, shorts)
        return shorts

    def peel(self) -> Words | None:
        """All short IDs in it, ascending, which are taken out; None: it does not empty."""
        found = self._peeled()
        if found is None or self.cells.any():
            return None
        found.sort()
        return None if repeats(found) else found

    def _peeled(self) -> Words | None:
        room = len(self.cells)
        if kernel.compiled is not None:
            taken = np.empty(room, np.uint64)
            count = kernel.compiled.peel(self.cells, self._column, taken)
            return None if count < 0 else taken[:count].copy()
        parts: list[Words] = []
        while room >= 0:
            pure = self._pure()
            if not len(pure):
                return np.concatenate(parts) if parts else pure
            room -= len(pure)
            parts.append(pure)
            self.toggle(pure)
        return None

    def _pure(self) -> Words:
        """Short IDs that are alone in a cell."""
        filled = self.cells.nonzero()[0]
        held = self.cells[filled]
        values, at = self._entries(held & _MASK)
        alone = (values == held) & (at == filled).any(axis=0)
        return np.unique(held[alone] & _MASK)

    def _entries(self, shorts: Words) -> tuple[Words, Ints]:
        """What short IDs are in a cell, ``(n,)``, and which cells they are in, ``(places, n)``."""
        mix = (shorts ^ np.uint64(self._salt)) * _FIRST_MIX
        mix ^= mix >> np.uint64(29)
        mix *= _SECOND_MIX
        mix ^= mix >> _HALF
        again = mix * _AGAIN
        length = self.shape.length
        first = _below(again, _WINDOW_FIELD, self.shape.windows) * length
        at = np.empty((self.shape.places, len(shorts)), np.int64)
        for place in range(self.shape.places):
            word = (mix, place) if place < _FIELDS else (again, _FIFTH_FIELD)
            at[place] = first + place * length + _below(*word, length)
        return shorts | again >> _CHECK_BITS << _SHORT_BITS, at


def _below(words: Words, field: int, count: int) -> Ints:
    """Numbers below `count` from a field of words."""
    some = words >> np.uint64(field * _FIELD_BITS) & np.uint64((1 << _FIELD_BITS) - 1)
    return (some * np.uint64(count) >> np.uint64(_FIELD_BITS)).astype(np.int64)


def find(wanted: Words, own: Words, mask: int = SHORT_MASK) -> Ints:
    """``(n,)``: where each wanted short ID is among the own ones cut by a mask.

    What is wanted ascends, each once. ``NOWHERE``: not there; ``SEVERAL``: more than once.
    """
    if not len(wanted):
        return np.empty(0, np.int64)
    if kernel.compiled is not None:
        places = np.empty(len(wanted), np.int64)
        kernel.compiled.find(wanted, own, np.array([mask], np.uint64), places)
        return places
    places = np.full(len(wanted), NOWHERE)
    cut = own & np.uint64(mask)
    at = np.minimum(wanted.searchsorted(cut), len(wanted) - 1)
    hits = (wanted[at] == cut).nonzero()[0]
    rows = at[hits]
    places[rows] = hits
    places[np.bincount(rows, minlength=len(wanted)) > 1] = SEVERAL
    return places


def divided(named: Words, own: Words) -> tuple[Words, Ints, Words, bool]:
    """What is only among named short IDs, and what only among the own ones: rows, and short IDs.

    Named ones ascend. Last: whether none of them is that of several own ones.
    """
    if kernel.compiled is not None:
        wanted, rows, alone, lacking, left, several = kernel.compiled.divide(named, own)
        found = np.frombuffer(rows, np.int64, left), np.frombuffer(alone, np.uint64, left)
        return np.frombuffer(wanted, np.uint64, lacking), *found, not several
    at = find(named, own)
    is_alone = np.ones(len(own), np.bool_)
    is_alone[at[at >= 0]] = False
    left_over = is_alone.nonzero()[0]
    clear = int(at.min(initial=NOWHERE)) == NOWHERE
    return named[at == NOWHERE], left_over, own[left_over], clear
