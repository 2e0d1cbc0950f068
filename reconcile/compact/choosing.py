"""What an initiator does about slices that differ: what is in a table, and what is told beside it.

Most slices that differ do so in one ID. Among many differences the initiator finds its own ones
of these by prints of 4 bytes, and tells them. Among few it tells by what prints are apart, which
is the short ID itself, and the responder finds out whose it is. Slices in a gap it names ID by ID.
The table is for all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from reconcile.compact.frames import AnswerHead
from reconcile.compact.keys import SHORT_MASK, ShortKey
from reconcile.compact.limits import MAX_CELLS, SIFTED_BYTES
from reconcile.compact.plan import MIN_DENSE
from reconcile.compact.sizing import Gaps, are_single, estimate, gaps, left_over, occupied, tallied
from reconcile.compact.slices import Compared, Held, Regions, Slices
from reconcile.compact.table import Table
from reconcile.ids import Bools, Ints, Words

_NOWHERE: Final = np.empty(0, np.int64)
_NOTHING: Final = np.empty(0, np.uint64)


@dataclass(slots=True)
class Choice:
    """What is done about ``(n,)`` slices that differ.

    Attributes:
        low: places of what is in them; where an own ID explains a slice, of this ID alone.
        high: the same.
        differs: which slices of the peer's they are; None: all of them.
        shorts: the short IDs between these places, once they are read.
        explained: which slices are not in the table because one ID explains them; None: that was
            not looked for.
        told: what is told of each of these.
        by_prints: that is by what prints are apart.
        explaining: rows of the short IDs that explain a slice.
        listed: which of the others are not in the table either, and named ID by ID; None: none.
        named: the short IDs of these, ascending.
        size: so many differences the table is made for.
    """

    low: Ints
    high: Ints
    differs: Bools | None = None
    shorts: Words = field(default_factory=lambda: _NOTHING, repr=False)
    explained: Bools | None = None
    told: Words = field(default_factory=lambda: _NOTHING, repr=False)
    by_prints: bool = False
    explaining: Ints = field(default_factory=lambda: _NOWHERE)
    listed: Bools | None = None
    named: Words = field(default_factory=lambda: _NOTHING, repr=False)
    size: float = 0.0

    def put_into(self, table: Table, held: Held, key: ShortKey) -> None:
        """Put all into a table that is to be found by it."""
        if not len(self.shorts):
            if self.explained is None:
                self.shorts = table.fill(held.rows, self.low, self.high, key)
                return
            self.shorts = key.of_places(held.rows, self.low, self.high)
        if self.by_prints:
            assert self.explained is not None
            if not self.explained.all():
                table.toggle(self.shorts[np.repeat(~self.explained, self.high - self.low)])
            return
        table.toggle(self.shorts)
        table.toggle(self.told)
        table.toggle(self.named)


@dataclass(frozen=True, slots=True)
class Heard:
    """What the peer has said.

    Attributes:
        head: of its answer.
        regions: what it has cut into slices.
        apart: ``(144,)``, where it could not cut these, by which balances of bits the short IDs in
            them differ; else None.
    """

    head: AnswerHead
    regions: Regions
    apart: Ints | None = None


NOTHING_CHOSEN: Final = Choice(_NOWHERE, _NOWHERE)


def choose(held: Held, heard: Heard, compared: Compared, inside: int, key: ShortKey) -> Choice:
    """What to do about slices that differ; ``inside``: IDs here in all that the peer has cut."""
    head, chosen = heard.head, compared.chosen
    certain = head.print_bytes > 0
    net, slices = held.count - head.count, len(compared.differs)
    choice = Choice(chosen.low, chosen.high, compared.differs if certain else None)
    if head.print_bytes == SIFTED_BYTES:
        choice = _sifted(choice, held, chosen, key)
    usual = max(0, inside - net) // max(1, slices)
    single = np.abs(chosen.balances) == 1 if choice.explained is None else choice.explained
    found = _gaps(held, chosen, single, heard.regions, usual)
    places = compared.differs.nonzero()[0]
    if choice.explained is not None:
        left = ~choice.explained
        if found is not None:
            places = places[~_name(choice, chosen, found.named, left)]
    elif certain and not _is_some_gap(found) and are_single(chosen.balances, places, net):
        choice.explained, choice.by_prints = single, True
        choice.told = chosen.prints[single] & np.uint64(SHORT_MASK)
        left = ~single
    else:
        left = np.ones(len(chosen), np.bool_)
    apart, least = chosen.balances[left], 0
    if choice.by_prints:
        least = abs(net) - len(choice.told)
    elif choice.listed is None:
        sifted = choice.explained is not None
        least = left_over(net - len(choice.told), apart, sifted=sifted)
    if certain:
        slices, scattered = occupied(places)
        least = max(least, round(scattered) - len(choice.told))
    of_left = None if found is None else found.of(left)
    _, choice.size = estimate(apart, of_left, slices, least, certain=certain)
    if heard.apart is not None:
        choice.size = max(tallied(heard.apart), float(least))
    elif not certain:
        choice.size = max(choice.size, min(held.count + head.count, MIN_DENSE))
    return choice


def _is_some_gap(found: Gaps | None) -> bool:
    return found is not None and bool(found.most.any())


def _sifted(choice: Choice, held: Held, chosen: Slices, key: ShortKey) -> Choice:
    """With the own IDs that explain a slice."""
    sifted = held.sift(chosen, key)
    explained = sifted.told >= 0
    at = sifted.told[explained]
    low, high, shorts = sifted.low, sifted.high, sifted.shorts
    told = shorts[at]
    return Choice(low, high, choice.differs, shorts, explained, told, explaining=at)


def _gaps(held: Held, chosen: Slices, single: Bools, regions: Regions, usual: int) -> Gaps | None:
    """What counts say of slices that differ; the peer has equal counts in all of them."""
    counts = held.counts(chosen, usual)
    # At an edge of a region a slice may be small anyway.
    cut_off = regions.at_edge(chosen.lower, chosen.upper) & (counts < usual)
    found = gaps(chosen.balances, counts, single & ~cut_off, usual)
    return None if found is None else found.but_for(cut_off)


def _name(choice: Choice, chosen: Slices, worth: Bools, left: Bools) -> Bools:
    """Set apart slices that are named ID by ID, which these are, and leave the others left.

    Where a gap ends neither counts nor balances say much, so slices beside it are named too.
    """
    touching = chosen.upper[:-1] == chosen.lower[1:]
    named = worth.copy()
    named[1:] |= worth[:-1] & touching
    named[:-1] |= worth[1:] & touching
    named &= left
    counts = choice.high - choice.low
    if not named.any() or int(counts[named].sum()) > MAX_CELLS // 2:
        return np.zeros_like(named)
    choice.listed = named[left]
    choice.named = np.sort(choice.shorts[np.repeat(named, counts)])
    left &= ~named
    return named
