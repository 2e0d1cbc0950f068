"""The questions of a payload: its ranges without the Skips, inside the territory of a session.

Outside its territory (the initiator's window; what the responder was first asked about, not below
its horizon) a session neither compares nor answers: it sends Skip there and splits a range at the
border (rulings on WAKU-SYNC, "Different horizons"). Unless it is equal to ours, the fingerprint of
a range that was cut says nothing about what is left of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from reconcile.codec import RangeKind, Ranges, expressible, reach
from reconcile.errors import PayloadLimitError
from reconcile.ids import LOWEST, Bools, Ints, SyncId, SyncIds, Words, less
from reconcile.view import Items, Spans

Territory = tuple[SyncId, SyncId]


_NOWHERE = np.empty(0, np.int64)
_TRUE = np.ones(4_096, np.bool_)
_TRUE.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Questions:
    """The ranges to answer, q of them, of which s are item sets and the others fingerprints.

    Attributes:
        spans: (q,) the ranges; each upper bound can be expressed after its lower one.
        is_set: (q,).
        fingerprints: (q - s, 4), in the order of their ranges.
        known: (q - s,) whether the fingerprint is of just this range.
        sets: the items of the sets.
        reconciled: (s,).
        count: q.
        prints_at: (q - s,) which questions are fingerprints.
        sets_at: (s,) which questions are item sets.
    """

    spans: Spans
    is_set: Bools
    fingerprints: Words
    known: Bools
    sets: Items
    reconciled: Bools

    count: int = field(init=False)
    prints_at: Ints = field(init=False)
    sets_at: Ints = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.is_set)
        is_plain = not len(self.reconciled)
        object.__setattr__(self, "count", count)
        prints_at = np.arange(count) if is_plain else (~self.is_set).nonzero()[0]
        object.__setattr__(self, "prints_at", prints_at)
        object.__setattr__(self, "sets_at", _NOWHERE if is_plain else self.is_set.nonzero()[0])

    def __len__(self) -> int:
        return self.count

    def rows_of(self, at: Ints) -> Ints:
        """Return the rows of the fingerprints of some questions that are fingerprints."""
        if not len(self.sets_at):
            return at
        return np.asarray(self.prints_at.searchsorted(at))


def asked_about(ranges: Ranges) -> Territory | None:
    """Return the bounds of the ranges that are no Skips; None if there are none."""
    places = np.flatnonzero(ranges.kinds != RangeKind.SKIP)
    if not len(places):
        return None
    first = int(places[0])
    lower = ranges.upper.at(first - 1) if first else LOWEST
    return lower, ranges.upper.at(int(places[-1]))


def questions(ranges: Ranges, territory: Territory, max_cut_ranges: int) -> Questions:
    """Return the questions of a payload.

    Args:
        ranges: the payload.
        territory: the bounds of the session.
        max_cut_ranges: how many ranges may come of those whose upper bound an encoder cannot
            express after the lower one, which a decoder has to understand nevertheless.

    Raises:
        PayloadLimitError: there would be more.
    """
    places = (ranges.kinds != RangeKind.SKIP).nonzero()[0]
    asked = Questions(
        Spans(_lower(ranges.upper, places), ranges.upper.take(places)),
        ranges.kinds.take(places) == RangeKind.ITEM_SET,
        ranges.fingerprints,
        _all_true(len(ranges.fingerprints)),
        Items(ranges.item_offsets, ranges.items),
        ranges.reconciled,
    )
    if not len(asked):
        return asked
    if asked.spans.lower.at(0) < territory[0] or territory[1] < asked.spans.upper.at(-1):
        asked = _inside(asked, territory)
    if not asked.spans.upper.has_hashes():
        return asked
    awkward = ~expressible(asked.spans.lower, asked.spans.upper)
    return _straightened(asked, awkward, max_cut_ranges) if awkward.any() else asked


def _all_true(count: int) -> Bools:
    """Return so many times True, not to be written."""
    return _TRUE[:count] if count <= len(_TRUE) else np.ones(count, np.bool_)


def _lower(upper: SyncIds, places: Ints) -> SyncIds:
    """Return the lower bounds of some ranges, given all upper ones."""
    lower = upper.take(places - 1)
    if len(places) and not places[0]:
        lower.timestamps[0] = 0
        if not lower.plain:
            lower.hashes[0] = 0
    return lower


def _inside(asked: Questions, territory: Territory) -> Questions:
    """Drop what lies beyond the borders."""
    first, end = (SyncIds.of([bound]) for bound in territory)
    lower, upper = asked.spans.lower, asked.spans.upper
    every = np.zeros(len(asked), np.int64)
    keep = less(first[every], upper) & less(lower, end[every])
    below, above = less(lower, first[every])[keep], less(end[every], upper)[keep]
    lower, upper = lower[keep], upper[keep]
    lower = SyncIds.join([first[every[: below.sum()]], lower[~below]])
    upper = SyncIds.join([upper[~above], end[every[: above.sum()]]])
    is_set = asked.is_set[keep]
    whole = ~(below | above)
    of_sets, of_prints = keep[asked.is_set], keep[~asked.is_set]
    items = asked.sets.ids
    at = np.zeros(len(items), np.int64)
    item_kept = ~less(items, first[at]) & less(items, end[at])
    owner = np.repeat(np.arange(len(of_sets)), np.diff(asked.sets.offsets))
    counts = np.bincount(owner[item_kept], minlength=len(of_sets))[of_sets]
    return Questions(
        Spans(lower, upper),
        is_set,
        asked.fingerprints[of_prints],
        (asked.known[of_prints] & whole[~is_set]),
        Items(_offsets(counts), items[item_kept]),
        asked.reconciled[of_sets],
    )


def _offsets(counts: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts)))


def _straightened(asked: Questions, awkward: Bools, max_cut_ranges: int) -> Questions:
    """Cut ranges at bounds that can be expressed one after the other."""
    chains: dict[int, SyncIds] = {}
    total = 0
    for row in np.flatnonzero(awkward).tolist():
        chain = reach(asked.spans.lower.at(row), asked.spans.upper.at(row))
        total += len(chain)
        if total > max_cut_ranges:
            raise PayloadLimitError("max_cut_ranges", max_cut_ranges, total)
        chains[row] = SyncIds.of(chain)
    return cut_questions(asked, chains)


def cut_questions(asked: Questions, chains: dict[int, SyncIds]) -> Questions:
    """Cut questions.

    Args:
        asked: all questions.
        chains: by the number of a question the upper bounds of its pieces, the last
            being its own; ascending numbers.
    """
    pieces = np.ones(len(asked), np.int64)
    bounds: list[SyncIds] = []
    done = 0
    for row, chain in chains.items():
        pieces[row] = len(chain)
        bounds += [asked.spans.upper[done:row], chain]
        done = row + 1
    upper = SyncIds.join([*bounds, asked.spans.upper[done:]])
    before = upper[np.arange(len(upper)) - 1]
    lower = SyncIds(before.timestamps, before.hashes.copy())
    starts = np.cumsum(pieces) - pieces
    lower.timestamps[starts] = asked.spans.lower.timestamps
    lower.hashes[starts] = asked.spans.lower.hashes
    is_set = np.repeat(asked.is_set, pieces)
    of_prints, of_sets = pieces[~asked.is_set], pieces[asked.is_set]
    return Questions(
        Spans(lower, upper),
        is_set,
        np.repeat(asked.fingerprints, of_prints, axis=0),
        np.repeat(asked.known & (of_prints == 1), of_prints),
        Items(_cut_offsets(asked.sets, of_sets, upper[is_set]), asked.sets.ids),
        np.repeat(asked.reconciled, of_sets),
    )


def _cut_offsets(sets: Items, pieces: Ints, upper: SyncIds) -> Ints:
    """Return offsets of sets of which some were cut into pieces with these upper bounds."""
    ends = np.repeat(sets.offsets[1:], pieces)
    last = np.cumsum(pieces) - 1
    for row in np.flatnonzero(pieces > 1).tolist():
        start, end = int(sets.offsets[row]), int(sets.offsets[row + 1])
        items = sets.ids[start:end]
        for piece in range(int(last[row] - pieces[row]) + 1, int(last[row])):
            bound = upper[np.full(len(items), piece)]
            ends[piece] = start + np.count_nonzero(less(items, bound))
    return np.concatenate(([0], ends))
