"""What the responder of a compact session makes of short IDs that it has decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from reconcile.compact.keys import SHORT_MASK
from reconcile.compact.plan import wanted_bytes
from reconcile.ids import Ints, SyncIds, Words


@dataclass(frozen=True, slots=True)
class Matched:
    """What each side has alone.

    Attributes:
        wanted: short IDs that the responder lacks.
        offered: short IDs of what it has.
        to_send: what these are.
        sent: the XOR of their hashes.
        clear: no short ID is that of several IDs.
    """

    wanted: Words
    offered: Words
    to_send: SyncIds
    sent: Words
    clear: bool


_NumbersT = TypeVar("_NumbersT", Words, Ints)


def merged(*parts: _NumbersT) -> _NumbersT:
    """All numbers of one part or more, ascending."""
    some = [part for part in parts if len(part)]
    found = np.concatenate(some) if len(some) > 1 else (some or parts)[0].copy()
    found.sort()
    return found


def repeats(ascending: Words | Ints) -> bool:
    """Whether one of ascending numbers is there more than once."""
    return len(ascending) > 1 and bool((ascending[1:] == ascending[:-1]).any())


def shortened(wanted: Words, items: int) -> tuple[int, Words]:
    """Short IDs cut to so many bytes that they can be found among items; ascending."""
    size = wanted_bytes(len(wanted), items)
    if not len(wanted):
        return size, wanted
    while True:
        cut = wanted & np.uint64(min((1 << (8 * size)) - 1, SHORT_MASK))
        cut.sort()
        if not repeats(cut):
            return min(size, 6), cut
        size += 1
