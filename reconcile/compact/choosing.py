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

from reconcile import kernel
from reconcile.compact import plan
from reconcile.compact.frames import AnswerHead
from reconcile.compact.keys import NO_WORDS, SHORT_MASK, ShortKey
from reconcile.compact.limits import MAX_CELLS, SIFTED_BYTES
from reconcile.compact.sizing import (
    MOST_USUAL,
    Gaps,
    Ordinary,
    Sums,
    are_single,
    estimate,
    gaps,
    left_over,
    occupied,
    summed,
    tallied,
)
from reconcile.compact.slices import Compared, Held, Regions, Slices
from reconcile.compact.table import Table
from reconcile.ids import Bools, Ints, Words

_NOWHERE: Final = np.empty(0, np.int64)


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
    shorts: Words = field(default_factory=lambda: NO_WORDS, repr=False)
    explained: Bools | None = None
    told: Words = field(default_factory=lambda: NO_WORDS, repr=False)
    by_prints: bool = False
    explaining: Ints = field(default_factory=lambda: _NOWHERE)
    listed: Bools | None = None
    named: Words = field(default_factory=lambda: NO_WORDS, repr=False)
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
        inside: IDs here in all of these.
        apart: ``(144,)``, where it could not cut these, by which balances of bits the short IDs in
            them differ; else None.
    """

    head: AnswerHead
    regions: Regions
    inside: int
    apart: Ints | None = None

    @property
    def may_be_anchored(self) -> bool:
        """Whether bounds may be at anchors, which a frame does not tell; counts may differ."""
        return self.head.print_bytes == SIFTED_BYTES and 2 * self.inside >= plan.NEAR_ITEMS


NOTHING_CHOSEN: Final = Choice(_NOWHERE, _NOWHERE)


@dataclass(frozen=True, slots=True)
class Survey:
    """What counts and balances say of slices that differ.

    Attributes:
        sums: of all of them.
        rest: of those that neither differ in one ID nor are listed.
        some_gap: whether one of them is in a gap.
        listed: which are better named ID by ID; None: none.
    """

    sums: Sums
    rest: Sums
    some_gap: bool
    listed: Bools | None


def survey(
    held: Held,
    compared: Compared,
    single: Bools,
    usual: int,
    regions: Regions,
    *,
    most_listed: int = 0,
) -> Survey:
    """Look at slices that differ, ``single`` of them in one ID.

    Args:
        held: what is held here.
        compared: the slices.
        single: which seem to differ in one ID.
        usual: how many IDs the peer has in a slice.
        regions: where a slice at an edge may be small anyway.
        most_listed: so many IDs may be listed, of slices that are not single.
    """
    usual, chosen = min(usual, MOST_USUAL), compared.chosen
    if kernel.compiled is not None:
        listed = np.empty(len(chosen), np.bool_)
        edges = regions.start, regions.end
        times, places = (chosen.lower, chosen.upper), (chosen.low, chosen.high)
        numbers = np.array((usual, most_listed, *compared.equal))
        columns = *times, *places, chosen.balances, single, *edges, numbers, listed
        sums, rest, gap, some = kernel.compiled.survey_slices(held.rows.handle, *columns)
        return Survey(Sums(*sums), Sums(*rest), bool(gap), listed if some else None)
    found = _gaps(held, compared, single, usual, regions)
    named = None if found is None else _listed(chosen, found.named, ~single, most_listed)
    left = ~single if named is None else ~(single | named)
    of_left = None if found is None else found.of(left)
    rest = summed(chosen.balances[left], of_left)
    some_gap = found is not None and bool(found.most.any())
    return Survey(summed(chosen.balances, found), rest, some_gap, named)


def choose(held: Held, heard: Heard, compared: Compared, key: ShortKey) -> Choice:
    """What to do about slices that differ."""
    head, chosen = heard.head, compared.chosen
    certain, sifted = head.print_bytes > 0, head.print_bytes == SIFTED_BYTES
    net, slices = held.count - head.count, len(compared.differs)
    choice = Choice(chosen.low, chosen.high, compared.differs if certain else None)
    if sifted:
        choice = _sifted(choice, held, chosen, key)
    usual = max(0, heard.inside - net) // max(1, slices)
    single = np.abs(chosen.balances) == 1 if choice.explained is None else choice.explained
    most_listed = MAX_CELLS // 2 if sifted else 0
    said = survey(held, compared, single, usual, heard.regions, most_listed=most_listed)
    sums, least = said.rest, 0
    places = compared.differs.nonzero()[0]
    if said.listed is not None:
        _list(choice, said.listed)
        places = places[~said.listed]
    elif sifted:
        least = left_over(net - len(choice.told), sums.single, sifted=True)
    elif certain and not said.some_gap and are_single(said.sums, places, net):
        choice.explained, choice.by_prints = single, True
        choice.told = chosen.prints[single] & np.uint64(SHORT_MASK)
        least = abs(net) - len(choice.told)
    else:
        sums, least = said.sums, left_over(net, 0, sifted=False)
    if certain:
        slices, scattered = occupied(places)
        least = max(least, round(scattered) - len(choice.told))
    _, choice.size = estimate(sums, slices, least, certain=certain)
    if heard.apart is not None:
        choice.size = max(tallied(heard.apart), float(least))
    elif not certain:
        choice.size = max(choice.size, min(held.count + head.count, plan.MIN_DENSE))
    return choice


def _sifted(choice: Choice, held: Held, chosen: Slices, key: ShortKey) -> Choice:
    """With the own IDs that explain a slice."""
    sifted = held.sift(chosen, key)
    explained = sifted.told >= 0
    at = sifted.told[explained]
    low, high, shorts = sifted.low, sifted.high, sifted.shorts
    told = shorts[at]
    return Choice(low, high, choice.differs, shorts, explained, told, explaining=at)


def _gaps(
    held: Held, compared: Compared, single: Bools, usual: int, regions: Regions
) -> Gaps | None:
    """What counts say of slices that differ; the peer has equal counts in all of them.

    How far these may be apart is seen in slices that are equal, or in those that differ in one ID,
    whichever are more.
    """
    chosen = compared.chosen
    counts = held.counts(chosen, usual)
    cut_off = regions.at_edge(chosen.lower, chosen.upper) & (counts < usual)
    ordinary = Ordinary.of(counts[single & ~cut_off])
    if compared.equal.slices >= ordinary.slices:
        ordinary = compared.equal
    found = gaps(chosen.balances, counts, ordinary, usual)
    return None if found is None else found.but_for(cut_off)


def _listed(chosen: Slices, worth: Bools, left: Bools, most: int) -> Bools | None:
    """Which of the slices that are left are named ID by ID; None: none, or it would be too much.

    Where a gap ends neither counts nor balances say much, so slices beside it are named too.
    """
    touching = chosen.upper[:-1] == chosen.lower[1:]
    named = worth.copy()
    named[1:] |= worth[:-1] & touching
    named[:-1] |= worth[1:] & touching
    named &= left
    some = most > 0 and named.any() and chosen.items_in(named) <= most
    return named if some else None


def _list(choice: Choice, listed: Bools) -> None:
    """Set slices apart that are named ID by ID."""
    assert choice.explained is not None
    choice.listed = listed[~choice.explained]
    choice.named = np.sort(choice.shorts[np.repeat(listed, choice.high - choice.low)])
