"""The choice of what an initiator puts into a table, and of the IDs that it sends beside it.

Most slices that differ do so in one ID. Among many differences the initiator finds its own ones
of these by prints of 4 bytes, and sends them. Among few it sends by what prints are apart, which
is the short ID itself, and the responder finds out which side has it. Slices in a gap it names ID
by ID. The table is for all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from reconcile.compact import plan
from reconcile.compact.frames import EXACT_PRINT_BYTES, AnswerHead
from reconcile.compact.keys import NO_WORDS, SHORT_MASK, ShortKey
from reconcile.compact.plan import are_single, estimate, left_over, occupied, size_by_bits
from reconcile.compact.slices import Regions, SliceDifferences, Slices, WindowIndex
from reconcile.compact.table import MAX_CELLS, ShortIdTable
from reconcile.ids import Bools, Ints, Words

_NOWHERE: Final = np.empty(0, np.int64)


@dataclass(slots=True)
class TableChoice:
    """The way in which each of ``(n,)`` slices that differ is sent.

    Attributes:
        low: places of the slices; where an own ID explains a slice, of this ID alone.
        high: the same.
        differs: which slices of the peer's they are; None: all of them.
        shorts: the short IDs between these places, once they are read.
        explained: which slices are not in the table because one ID explains them; None: none was
            looked for.
        single: what is sent of each of these.
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
    single: Words = field(default_factory=lambda: NO_WORDS, repr=False)
    by_prints: bool = False
    explaining: Ints = field(default_factory=lambda: _NOWHERE)
    listed: Bools | None = None
    named: Words = field(default_factory=lambda: NO_WORDS, repr=False)
    size: float = 0.0

    def put_into(self, table: ShortIdTable, window: WindowIndex, key: ShortKey) -> None:
        """Insert all that the table is for."""
        if not len(self.shorts):
            if self.explained is None:
                self.shorts = table.fill(window.rows, self.low, self.high, key)
                return
            self.shorts = key.of_places(window.rows, self.low, self.high)
        if self.by_prints:
            assert self.explained is not None
            if not self.explained.all():
                table.toggle(self.shorts[np.repeat(~self.explained, self.high - self.low)])
            return
        table.toggle(self.shorts)
        table.toggle(self.single)
        table.toggle(self.named)


NOTHING_CHOSEN: Final = TableChoice(_NOWHERE, _NOWHERE)


def may_be_anchored(head: AnswerHead, items: int) -> bool:
    """Return True if bounds may be at anchors; a frame does not say so, and counts may differ."""
    return head.print_bytes == EXACT_PRINT_BYTES and 2 * items >= plan.NEAR_ITEMS


def choose(
    window: WindowIndex,
    head: AnswerHead,
    compared: SliceDifferences,
    key: ShortKey,
    inside: tuple[Regions, int],
) -> TableChoice:
    """Choose how to send slices that differ.

    Args:
        window: the own IDs.
        head: the peer's answer.
        compared: the slices.
        key: the key of short IDs.
        inside: the regions that the peer has cut into slices, and the own IDs in all of these.
    """
    chosen, (regions, items) = compared.chosen, inside
    certain, exact = head.print_bytes > 0, head.print_bytes == EXACT_PRINT_BYTES
    net, slices = window.count - head.count, len(compared.differs)
    choice = TableChoice(chosen.low, chosen.high, compared.differs if certain else None)
    if exact:
        choice = _explain(choice, window, chosen, key)
    usual = max(0, items - net) // max(1, slices)
    single = np.abs(chosen.balances) == 1 if choice.explained is None else choice.explained
    most_listed = MAX_CELLS // 2 if exact else 0
    survey = window.survey(compared, single, usual, regions, most_listed=most_listed)
    sums, least = survey.rest, 0
    places = compared.differs.nonzero()[0]
    if survey.listed is not None:
        assert choice.explained is not None
        choice.listed = survey.listed[~choice.explained]
        choice.named = choice.shorts[np.repeat(survey.listed, choice.high - choice.low)]
        choice.named.sort()
        places = places[~survey.listed]
    elif exact:
        least = left_over(net - len(choice.single), sums.single, sifted=True)
    elif certain and not survey.has_gap and are_single(survey.sums, places, net):
        choice.explained, choice.by_prints = single, True
        choice.single = chosen.prints[single] & np.uint64(SHORT_MASK)
        least = abs(net) - len(choice.single)
    else:
        sums, least = survey.sums, left_over(net, 0, sifted=False)
    if certain:
        slices, scattered = occupied(places)
        least = max(least, round(scattered) - len(choice.single))
    _, choice.size = estimate(sums, slices, least, certain=certain)
    if compared.bits_apart is not None:
        choice.size = max(size_by_bits(compared.bits_apart), float(least))
    elif not certain:
        choice.size = max(choice.size, min(window.count + head.count, plan.MIN_DENSE))
    return choice


def _explain(
    choice: TableChoice, window: WindowIndex, chosen: Slices, key: ShortKey
) -> TableChoice:
    """Return the choice with the own IDs that explain a slice."""
    sifted = window.sift(chosen, key)
    explained = sifted.single >= 0
    at = sifted.single[explained]
    return TableChoice(
        sifted.low,
        sifted.high,
        choice.differs,
        sifted.shorts,
        explained,
        sifted.shorts[at],
        explaining=at,
    )
