"""The turn of a session: from the questions of a received payload to the answer.

A turn reads in up to four steps, each of them for many ranges at once:

1. count and fingerprint of every range that was asked about;
2. the items of the sets, and, where a fingerprint differs, whether one ID of ours is all the
   difference (the deduction);
3. parts of what is to be split, items of what is to be sent as a set, and the IDs of a deduced
   ID's nanosecond;
4. finer parts that show how dense the differences are.

Every answer keeps to the limits of a payload. Where it would not, the later questions are answered
by the fingerprints of their own ranges: nothing is decided about them, nothing is started over,
and they come back with the next payload. A first question that is too large by itself is split.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reconcile.algorithm.answer import GAUGE_PARTS, assemble, choose_gauges, part_pieces
from reconcile.algorithm.differences import (
    Differences,
    differences,
    limit_differences,
    moments,
    narrow_sets,
    show_deduced,
    with_stop,
)
from reconcile.algorithm.plan import FORCED_PARTS, Rules, SplitPlan, limited_parts, wanted_parts
from reconcile.algorithm.questions import Questions
from reconcile.codec import Payload, Ranges, encode
from reconcile.errors import PayloadLimitError
from reconcile.ids import Bools, Ints, SyncId, SyncIds, rank, rows_differ, total
from reconcile.view import Items, Loading, Measured, SpanParts, Spans, View, no_fingerprints

MAX_TRIES = 12
"""The number of times that a first question is cut before it is given up as too large."""

ROOM_SHARE = 0.5
"""An answer's share of the limits on ranges and bytes: the next one needs room to split."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a turn.

    Attributes:
        payload: the answer, encoded; empty if nothing is left to say.
        to_send: IDs that the peer was found to lack; each entry ascends.
        to_receive: IDs that the peer was found to have and we lack; each entry ascends.
        truncated: whether the session's limit is reached, so that there may be more.
        own_count: the number of own IDs in the ranges that were asked about.
    """

    payload: bytes
    to_send: list[SyncIds]
    to_receive: list[SyncIds]
    truncated: bool
    own_count: int


_NO_INTS = np.empty(0, np.int64)
_NO_BOOLS = np.empty(0, np.bool_)


MAX_CROWD = 262_144
"""IDs, about 10 MiB, that are read because they share the nanosecond of a deduced one."""


@dataclass(frozen=True, slots=True)
class _Named:
    """The IDs that were deduced to be all that the peer lacks in their questions.

    Attributes:
        rows: the questions.
        ids: one ID of each.
        spans: the nanoseconds of these, inside their questions.
    """

    rows: Ints
    ids: SyncIds
    spans: Spans


@dataclass(frozen=True, slots=True)
class _Draft:
    """A draft of an answer, which may not fit.

    Attributes:
        decided: which of ``found`` the peer does not know yet.
        settled: questions in which the peer has shown all differences: they need no answer.
    """

    pieces: list[Ranges]
    found: Differences
    decided: Bools
    named: SyncIds
    settled: Ints


class Turn:
    """The work of one turn."""

    def __init__(self, asked: Questions, rules: Rules, view: View) -> None:
        self._asked = asked
        self._view = view
        self._rules = rules
        self._measured = Measured(_NO_INTS, no_fingerprints(0))
        self._differs = self._filled = self._probed = _NO_BOOLS
        self._open = _NO_INTS
        self._plan = SplitPlan(rules.tuning, rules.ordinal, False, None)

    def run(self) -> Loading[Reply]:
        """Compute the reply.

        Raises:
            PayloadLimitError: not even the first question can be answered within the limits.
        """
        asked = self._asked
        if not len(asked):
            return Reply(b"", [], [], False, 0)
        yield from self._measure()
        own_count = total(self._measured.counts)
        if not len(self._open):
            return Reply(b"", [], [], self._rules.differences_left <= 0, own_count)
        forced = 0
        for _ in range(MAX_TRIES):
            reply = None
            if not self._is_too_large():
                draft = yield from self._draft(forced)
                reply = self._fitting(draft, own_count)
            if reply is not None:
                return reply
            if self._asked.is_set[self._open[0]]:
                yield from self._cut_first()
            else:
                forced = FORCED_PARTS if forced == 0 else 2
        allowed = self._rules.limits.payload.max_ranges
        raise PayloadLimitError("max_ranges", allowed, len(asked))

    def _measure(self) -> Loading[None]:
        """Count and fingerprint what was asked about, and compare."""
        self._measured = yield from self._view.measure(self._asked.spans)
        self._compare()

    def _cut_first(self) -> Loading[None]:
        """Cut the first question, a set that is too large to answer at once."""
        first = int(self._open[0])
        count = int(self._measured.counts[first])
        limits = self._rules.limits.payload
        parts = max(FORCED_PARTS, 4 * count // limits.max_elements)
        parts = min(parts, limits.max_ranges // 4, limits.max_payload_bytes // 256)
        span = self._asked.spans[first : first + 1]
        found = yield from self._view.split(span, np.array([parts]))
        upper = self._asked.spans.upper
        pieces = np.ones(len(upper), np.int64)
        pieces[first] = len(found.upper)
        bounds = SyncIds.join([upper[:first], found.upper, upper[first + 1 :]])
        self._asked = self._asked.cut(np.arange(len(upper)).repeat(pieces), bounds)
        yield from self._measure()

    def _compare(self) -> None:
        """Find which fingerprints differ, and plan the rest by them."""
        asked, rules, measured = self._asked, self._rules, self._measured
        # A range that was cut counts as equal too when the peer's fingerprint of all of it is ours
        # of what is left: then the peer has nothing in the rest. So two nodes whose horizons differ
        # by moments, and that hold nothing there, need no second look.
        self._differs = (
            rows_differ(measured.fingerprints, asked.ranges.fingerprints) & ~asked.is_set
        )
        self._open = (self._differs | asked.is_set).nonzero()[0]
        if not len(self._open):
            return
        self._filled = rows_differ(asked.ranges.fingerprints, 0)
        compared = measured.counts[asked.known], self._differs[asked.known]
        self._plan = SplitPlan.of(rules, total(measured.counts), *compared)

    def _is_too_large(self) -> bool:
        """Return True if the first question is a set with more own IDs than can be read."""
        if not len(self._open) or not self._asked.is_set[self._open[0]]:
            return False
        return bool(self._measured.counts[self._open[0]] > self._readable)

    @property
    def _readable(self) -> int:
        return self._rules.limits.payload.max_elements + self._rules.differences_left

    def _draft(self, forced: int) -> Loading[_Draft]:
        """Make an answer to everything, whether or not it fits."""
        asked = self._asked
        compared = self._comparable()
        spans, sets = asked.spans[compared], asked.ranges.take(compared)
        local = yield from self._view.items(spans)
        offsets = np.concatenate(([0], np.cumsum(sets.counts)))
        found = differences(local, Items(offsets, sets.items))
        named = yield from self._deduce(forced)
        decided, left = ~sets.reconciled.take(found.sets), self._rules.differences_left
        deferred = _NO_INTS
        if len(found) + len(named.ids) >= left:
            chosen, later_sets, stop = limit_differences(found, decided, left)
            local = with_stop(local, found, stop)
            found, decided = found.select(chosen), decided[chosen]
            rest = left - len(found)
            named = _Named(named.rows[:rest], named.ids[:rest], named.spans[:rest])
            deferred = compared.take(later_sets)
        unsettled = self._differs | asked.is_set
        unsettled[named.rows] = unsettled[compared] = False
        rows = unsettled.nonzero()[0]
        parts = self._parts(rows, forced)
        later = np.union1d(rows[parts == 1], deferred)
        pieces = [self._echo(later), narrow_sets(found.select(decided), local, spans)]
        if len(named.ids):
            around = yield from self._view.items(named.spans)
            pieces.append(show_deduced(named.ids, around, named.spans))
        pieces.append((yield from self._items(rows[parts == 0])))
        pieces += yield from self._split(rows[parts > 1], parts[parts > 1])
        return _Draft(pieces, found, decided, named.ids, compared[sets.reconciled])

    def _comparable(self) -> Ints:
        """Return the sets that can be compared in this turn: the first ones that can be read.

        Sets that the peer has compared come before the others: it counts those differences already.
        """
        at = self._asked.is_set.nonzero()[0]
        counts = self._measured.counts.take(at)
        if total(counts) <= self._readable:
            return at
        order = np.argsort(~self._asked.ranges.reconciled[at], kind="stable")
        return np.sort(at[order[np.cumsum(counts[order]) <= self._readable]])

    def _deduce(self, forced: int) -> Loading[_Named]:
        """Find single IDs that are all that the peer lacks in a range."""
        at = (self._differs & self._asked.known & self._filled).nonzero()[0]
        if forced:
            at = at[at != self._open[0]]
        counts = self._measured.counts.take(at)
        at = at.take(((counts > 0) & self._plan.worth_probing(counts)).nonzero()[0])
        self._probed = np.zeros(len(self._asked), np.bool_)
        self._probed[at] = True
        prints = self._asked.ranges.fingerprints.take(at, 0)
        apart = self._measured.fingerprints.take(at, 0) ^ prints
        found = yield from self._view.probe(self._asked.spans[at], apart)
        rows, ids = at[found.hit], found.found[found.hit]
        within = moments(ids, self._asked.spans[rows])
        counts = (yield from self._view.measure(within)).counts
        few = np.cumsum(counts) <= MAX_CROWD
        return _Named(rows[few], ids[few], within[few])

    def _parts(self, rows: Ints, forced: int) -> Ints:
        """Choose into how many parts to split questions; 0: send the items, 1: leave for later."""
        asked, limits = self._asked, self._rules.limits.payload
        sizes = self._measured.counts.take(rows)
        hollow = (asked.known & ~self._filled)[rows]
        parts = wanted_parts(self._plan, sizes, self._probed.take(rows), hollow, limits)
        parts[asked.is_set.take(rows)] = 1
        if forced and len(rows) and rows[0] == self._open[0]:
            parts[0] = forced
        return limited_parts(parts, sizes, limits)

    def _items(self, rows: Ints) -> Loading[Ranges]:
        """Return the sets of all IDs in some questions."""
        spans = self._asked.spans[rows]
        items = yield from self._view.items(spans)
        return Ranges.of_sets(spans, np.diff(items.offsets), items.ids, reconciled=False)

    def _split(self, rows: Ints, wanted: Ints) -> Loading[list[Ranges]]:
        """Return fingerprints of parts, some of them in finer parts to gauge the differences."""
        spans = self._asked.spans[rows]
        parts = yield from self._view.split(spans, wanted)
        cut = parts.spans(spans.lower)
        gauges = choose_gauges(parts, self._gauges)
        finer: SpanParts | None = None
        if len(gauges):
            finer = yield from self._view.split(cut[gauges], np.full(len(gauges), GAUGE_PARTS))
        return part_pieces(cut, parts, gauges, finer)

    @property
    def _gauges(self) -> int:
        return self._rules.tuning.gauges if self._plan.gauge else 0

    def _echo(self, rows: Ints) -> Ranges:
        """Return our own fingerprints of questions, as they were asked."""
        return Ranges.of_prints(self._asked.spans[rows], self._measured.fingerprints[rows])

    def _fitting(self, draft: _Draft, own_count: int) -> Reply | None:
        """Return the answer to as many questions as fit; None: not even to one.

        The others are answered by their own fingerprints.
        """
        limits, is_open = self._rules.limits.payload, self._open
        count = len(is_open)
        while True:
            later, pieces, cut = is_open[count:], draft.pieces, None
            if len(later):
                cut = self._asked.spans.lower.at(int(later[0]))
                echo = self._echo(np.setdiff1d(later, draft.settled))
                pieces = [*(some.take(np.arange(rank(some.lower, cut))) for some in pieces), echo]
            room = ROOM_SHARE if count > 1 else 1.0
            ranges = assemble(pieces)
            most = room * limits.max_ranges
            share = max(len(ranges) / most, len(ranges.items) / limits.max_elements)
            if len(ranges) <= int(most) and len(ranges.items) <= limits.max_elements:
                payload = encode(Payload(self._rules.cluster, self._rules.shards, ranges))
                share = len(payload) / (room * limits.max_payload_bytes)
                if share <= 1:
                    return self._reply(draft, cut, payload, own_count)
            if count <= 1:
                return None
            count = max(1, min(count - 1, int(0.9 * count / share)))

    def _reply(self, draft: _Draft, cut: SyncId | None, payload: bytes, own_count: int) -> Reply:
        """Return the reply to the questions before a bound, and to what the peer has shown.

        Both sides find the same, and so come to the session's limit together.
        """
        found, named, decided = draft.found, draft.named, draft.decided
        if cut is not None:
            kept = ~decided
            kept[: rank(found.ids, cut)] = True
            found, decided, named = found.select(kept), decided[kept], named[: rank(named, cut)]
        truncated = len(found) + len(named) >= self._rules.differences_left
        if truncated and not len(named) and not decided.any():
            payload = b""
        to_send, to_receive = [named, found.ids[found.ours]], [found.ids[~found.ours]]
        return Reply(payload, to_send, to_receive, truncated, own_count)
