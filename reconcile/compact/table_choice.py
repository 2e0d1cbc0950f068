"""The choice of what an initiator puts into a table, and of the IDs that it sends beside it.

Most slices that differ do so in one ID. Among many differences the initiator finds its own ones
of these by prints of 4 bytes, and sends them. Among few it sends by what prints are apart, which
is the short ID itself, and the responder finds out which side has it. Slices in a gap it names ID
by ID. The table is for all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from reconcile.compact import plan
from reconcile.compact.frames import EXACT_PRINT_BYTES, AnswerHead, TableFrame
from reconcile.compact.keys import NO_WORDS, SHORT_MASK, ShortKey
from reconcile.compact.plan import are_single, estimate, occupied, size_by_bits
from reconcile.compact.slices import Regions, SliceDifferences, WindowIndex
from reconcile.compact.table import MAX_CELLS, ShortIdTable, shape_for
from reconcile.ids import Ints, Words

_NOWHERE: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class TableChoice:
    """The way in which each of ``(n,)`` slices that differ is sent.

    Attributes:
        frame: the frame without its table.
        size: the number of differences that the table is made for.
        low: places of the slices; where an own ID explains a slice, of this ID alone.
        high: the same.
        shorts: the short IDs between these places.
        explaining: rows of the short IDs that explain a slice.
    """

    frame: TableFrame
    size: float
    low: Ints
    high: Ints
    shorts: Words = field(repr=False)
    explaining: Ints

    def fill(self, size: float, salt: int) -> TableFrame:
        """Return the frame with a table for ``size`` differences."""
        frame, shorts = self.frame, self.shorts
        shape = shape_for(size)
        table = ShortIdTable(shape, salt)
        if frame.explained is not None and frame.by_prints:
            shorts = shorts[np.repeat(~frame.explained, self.high - self.low)]
        table.toggle(shorts)
        if not frame.by_prints:
            table.toggle(frame.single)
            table.toggle(frame.named)
        return replace(frame, shape=shape, cells=table.cells)


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
    low, high, explaining, by_prints = chosen.low, chosen.high, _NOWHERE, False
    explained, listed, named, single_ids = None, None, NO_WORDS, NO_WORDS
    if exact:
        # The own IDs that explain a slice.
        low, high, shorts, rows = window.sift(chosen, key)
        explained = rows >= 0
        explaining = rows[explained]
        single_ids = shorts[explaining]
    else:
        shorts = key.of_places(window.rows, low, high)
    usual = max(0, items - net) // max(1, slices)
    single = np.abs(chosen.balances) == 1 if explained is None else explained
    most_listed = MAX_CELLS // 2 if exact else 0
    survey = window.survey(compared, single, usual, regions, most_listed=most_listed)
    sums = survey.rest
    places = compared.differs.nonzero()[0]
    if survey.listed is not None and explained is not None:
        listed = survey.listed[~explained]
        named = np.sort(shorts[np.repeat(survey.listed, high - low)])
        places = places[~survey.listed]
    elif certain and not exact and not survey.has_gap and are_single(survey.sums, places, net):
        explained, by_prints = single, True
        single_ids = chosen.prints[single] & np.uint64(SHORT_MASK)
    elif not exact:
        sums = survey.sums
    least = 0 if listed is not None else max(0, abs(net) - len(single_ids))
    if certain:
        slices, _ = occupied(places)
    _, size = estimate(sums, slices, least, certain=certain)
    if compared.bits_apart is not None:
        size = max(size_by_bits(compared.bits_apart), float(least))
    elif not certain:
        size = max(size, min(window.count + head.count, plan.MIN_DENSE))
    frame = TableFrame(
        compared.differs if certain else None,
        explained=explained,
        single=single_ids,
        listed=listed,
        named=named,
        by_prints=by_prints,
    )
    return TableChoice(frame, size, low, high, shorts, explaining)
