"""The turn of a session: from the questions of a received payload to the answer.

A turn reads in up to four steps, each of them for many ranges at once:

1. count and fingerprint of every range that was asked about;
2. the items of the sets, and, where a fingerprint differs, whether one ID of ours is all the
   difference (the deduction);
3. parts of what is to be split, items of what is to be sent as a set;
4. finer parts that show how dense the differences are, and the neighbours of a deduced ID where
   many share its nanosecond.

Every answer keeps to the limits of a payload. Where it would not, the later questions are answered
by the fingerprints of their own ranges: nothing is decided about them, nothing is started over,
and they come back with the next payload. A first question that is too large by itself is split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reconcile.algorithm.answer import (
    GAUGE_PARTS,
    AnswerPieces,
    assemble,
    choose_gauges,
    part_pieces,
    piece_keys,
)
from reconcile.algorithm.differences import (
    Differences,
    around,
    differences,
    limit_differences,
    narrow_sets,
    with_stop,
)
from reconcile.algorithm.plan import SplitPlan, Tuning, estimate
from reconcile.algorithm.questions import Questions, cut_questions
from reconcile.codec import Payload, encode
from reconcile.errors import PayloadLimitError
from reconcile.ids import Bools, Ints, SyncIds, rows_differ, rows_filled, total
from reconcile.limits import SessionLimits
from reconcile.view import Items, Loading, Measured, SpanParts, Spans, View, no_fingerprints

FORCED_PARTS = 16
"""Parts of a question that must be split because it is too large for one answer; then two."""

MAX_TRIES = 12
"""How often a first question may be cut before it is given up that it fits."""

ROOM_SHARE = 0.5
"""What an answer takes of the limits on ranges and bytes: the next one needs room to split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a turn.

    Attributes:
        cluster: sent with every payload.
        shards: likewise.
        limits: of the session.
        differences_left: how many more differences the session may find.
        tuning: the parameters.
        ordinal: of the message that will carry the answer, the initiator's first being 1.
        large: whether the window is large; None: to be found out in this turn.
    """

    cluster: int
    shards: tuple[int, ...]
    limits: SessionLimits
    differences_left: int
    tuning: Tuning
    ordinal: int
    large: bool | None


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


@dataclass(frozen=True, slots=True)
class _Named:
    """The IDs that were deduced to be all that the peer lacks in their ranges."""

    sources: Ints
    ids: SyncIds


_NO_INTS = np.empty(0, np.int64)
_NO_BOOLS = np.empty(0, np.bool_)
_NOTHING_MEASURED = Measured(_NO_INTS, no_fingerprints(0))
_NOTHING_NAMED = _Named(_NO_INTS, SyncIds.empty())
_NOTHING_FOUND = Differences(SyncIds.empty(), np.empty(0, np.bool_), _NO_INTS, _NO_INTS, _NO_INTS)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A choice among questions: split, into how many parts; send items; leave for later."""

    split: Ints
    parts: Ints
    as_set: Ints
    later: Ints


_NOTHING_TO_DO = _Choice(_NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A draft of an answer, which may not fit.

    Attributes:
        decided: which of ``found`` the peer does not know yet.
        settled: questions in which the peer has shown all differences: they need no answer.
    """

    pieces: list[AnswerPieces]
    found: Differences
    found_sources: Ints
    decided: Bools
    named: _Named
    settled: Ints


class Turn:
    """The work of one turn."""

    def __init__(self, asked: Questions, rules: Rules, view: View) -> None:
        self._asked = asked
        self._view = view
        self._rules = rules
        self._measured = _NOTHING_MEASURED
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
        self._asked = cut_questions(
            self._asked,
            np.arange(len(upper)).repeat(pieces),
            SyncIds.join([upper[:first], found.upper, upper[first + 1 :]]),
        )
        yield from self._measure()

    def _compare(self) -> None:
        """Find which fingerprints differ, and plan the rest by them."""
        asked, rules, measured = self._asked, self._rules, self._measured
        # A range that was cut counts as equal too when the peer's fingerprint of all of it is ours
        # of what is left: then the peer has nothing in the rest. So two nodes whose horizons differ
        # by moments, and that hold nothing there, need no second look.
        self._differs = rows_differ(measured.fingerprints, asked.fingerprints) & ~asked.is_set
        self._open = (self._differs | asked.is_set).nonzero()[0]
        if not len(self._open):
            return
        self._filled = rows_filled(asked.fingerprints)
        known = None
        if rules.ordinal > 2 and asked.known.any():
            known = estimate(measured.counts[asked.known], self._differs[asked.known])
        large = rules.large
        if large is None:
            large = total(measured.counts) >= rules.tuning.large_count
        self._plan = SplitPlan(rules.tuning, rules.ordinal, large, known)

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
        sources = self._comparable()
        set_spans = asked.spans[sources]
        found, local = _NOTHING_FOUND, None
        if len(sources):
            local = yield from self._view.items(set_spans)
            found = differences(local, asked.sets(sources))
        named = yield from self._deduce(forced)
        reconciled = asked.reconciled[sources]
        decided, left = ~reconciled.take(found.sets), self._rules.differences_left
        deferred = _NO_INTS
        if len(found) + len(named.ids) >= left:
            cap = limit_differences(found, decided, left)
            if local is not None:
                local = with_stop(local, found, cap.stop)
            found, decided = found.select(cap.chosen), decided[cap.chosen]
            rest = left - len(found)
            named = _Named(named.sources[:rest], named.ids[:rest])
            deferred = sources.take(cap.deferred)
        choice = self._choice(self._unsettled(named.sources, sources), forced)
        if len(deferred):
            choice = replace(choice, later=np.union1d(choice.later, deferred))
        pieces = yield from self._pieces(choice, named)
        if len(found) and local is not None:
            shown = found if decided.all() else found.select(decided)
            pieces.append(narrow_sets(shown, local, set_spans, sources))
        settled = sources[reconciled]
        return _Draft(pieces, found, sources.take(found.sets), decided, named, settled)

    def _comparable(self) -> Ints:
        """Return the sets that can be compared in this turn: the first ones that can be read.

        Sets that the peer has compared come before the others: it counts those differences already.
        """
        at = self._asked.is_set.nonzero()[0]
        counts = self._measured.counts.take(at)
        if total(counts) <= self._readable:
            return at
        order = np.argsort(~self._asked.reconciled[at], kind="stable")
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
        if not len(at):
            return _NOTHING_NAMED
        apart = self._measured.fingerprints.take(at, 0) ^ self._asked.fingerprints.take(at, 0)
        found = yield from self._view.probe(self._asked.spans[at], apart)
        hits = found.hit.nonzero()[0]
        return _Named(at.take(hits), found.found[hits])

    def _unsettled(self, named: Ints, compared: Ints) -> Ints:
        """Return the questions that need fingerprints or an unreconciled set for an answer."""
        unsettled = self._differs | self._asked.is_set
        unsettled[named] = unsettled[compared] = False
        return unsettled.nonzero()[0]

    def _choice(self, unsettled: Ints, forced: int) -> _Choice:
        """Choose how to answer questions that are not settled."""
        if not len(unsettled):
            return _NOTHING_TO_DO
        asked, limits = self._asked, self._rules.limits.payload
        sizes = self._measured.counts.take(unsettled)
        parts = self._plan.parts(sizes, self._probed.take(unsettled))
        parts[sizes <= 1] = 0
        # The peer has no ID where its fingerprint is zero.
        parts[(asked.known & ~self._filled)[unsettled]] = 0
        items = total(sizes)
        if items > limits.max_elements:
            parts[(parts == 0) & (sizes > limits.max_elements)] = FORCED_PARTS
        parts[asked.is_set.take(unsettled)] = 1
        if forced and unsettled[0] == self._open[0]:
            parts[0] = forced
        parts = np.minimum(parts, max(2, limits.max_ranges // 4))
        if items > limits.max_elements or total(parts) > limits.max_ranges // 2:
            over = np.cumsum(np.where(parts == 0, sizes, 0)) > limits.max_elements
            over |= np.cumsum(parts) > limits.max_ranges // 2
            over[0] = False
            parts[over] = 1
        split = (parts > 1).nonzero()[0]
        return _Choice(
            unsettled.take(split),
            parts.take(split),
            unsettled.take((parts == 0).nonzero()[0]),
            unsettled.take((parts == 1).nonzero()[0]),
        )

    def _pieces(self, choice: _Choice, named: _Named) -> Loading[list[AnswerPieces]]:
        """Read and make the chosen pieces."""
        pieces = [self._echo(choice.later)]
        if len(choice.as_set):
            spans = self._asked.spans[choice.as_set]
            items = yield from self._view.items(spans)
            pieces.append(_sets_of(choice.as_set, spans, items, reconciled=False))
        if len(named.ids):
            pieces += yield from self._show(named)
        if len(choice.split):
            pieces += yield from self._split(choice.split, choice.parts)
        return pieces

    def _show(self, named: _Named) -> Loading[list[AnswerPieces]]:
        """Show deduced IDs, each in its nanosecond, or in a part of it if others are there too."""
        homes = self._asked.spans[named.sources]
        moments = around(named.ids, np.ones(len(named.ids), np.int64), homes)
        counts = (yield from self._view.measure(moments)).counts
        alone, crowded = (counts <= 1).nonzero()[0], (counts > 1).nonzero()[0]
        singles = Items(np.arange(len(alone) + 1), named.ids[alone])
        sets = [_sets_of(named.sources.take(alone), moments[alone], singles, reconciled=True)]
        if len(crowded):
            sources = named.sources.take(crowded)
            narrow = around(named.ids[crowded], counts.take(crowded), self._asked.spans[sources])
            items = yield from self._view.items(narrow)
            sets.append(_sets_of(sources, narrow, items, reconciled=True))
        return sets

    def _split(self, sources: Ints, wanted: Ints) -> Loading[list[AnswerPieces]]:
        """Return fingerprints of parts, some of them in finer parts to gauge the differences."""
        spans = self._asked.spans[sources]
        parts = yield from self._view.split(spans, wanted)
        cut = parts.spans(spans.lower)
        gauges = choose_gauges(parts, self._gauges) if self._gauges else _NO_INTS
        finer: SpanParts | None = None
        if len(gauges):
            finer = yield from self._view.split(cut[gauges], np.full(len(gauges), GAUGE_PARTS))
        return part_pieces(sources, cut, parts, gauges, finer)

    @property
    def _gauges(self) -> int:
        return self._rules.tuning.gauges if self._plan.gauge else 0

    def _echo(self, at: Ints) -> AnswerPieces:
        """Return our own fingerprints of questions, as they were asked."""
        return AnswerPieces.of_prints(
            piece_keys(at), self._asked.spans[at], self._measured.fingerprints[at]
        )

    def _fitting(self, draft: _Draft, own_count: int) -> Reply | None:
        """Return the answer to as many questions as fit; None: not even to one.

        The others are answered by their own fingerprints.
        """
        limits, is_open = self._rules.limits.payload, self._open
        count = len(is_open)
        while True:
            later = is_open[count:]
            cut = int(later[0]) if len(later) else len(self._asked)
            pieces = draft.pieces
            if len(later):
                again = self._echo(np.setdiff1d(later, draft.settled))
                pieces = [*(some.before(cut) for some in pieces), again]
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

    def _reply(self, draft: _Draft, cut: int, payload: bytes, own_count: int) -> Reply:
        """Return the reply to the questions before the cut, and to what the peer has shown.

        Both sides find the same, and so come to the session's limit together.
        """
        found, named, decided = draft.found, draft.named, draft.decided
        if cut < len(self._asked):
            kept = (draft.found_sources < cut) | ~decided
            found, decided = found.select(kept), decided[kept]
            named = _Named(named.sources, named.ids[named.sources < cut])
        truncated = len(found) + len(named.ids) >= self._rules.differences_left
        if truncated and not len(named.ids) and not decided.any():
            payload = b""
        to_send, to_receive = [named.ids], []
        if len(found):
            to_send.append(found.ids[found.ours])
            to_receive.append(found.ids[~found.ours])
        return Reply(payload, to_send, to_receive, truncated, own_count)


def _sets_of(sources: Ints, spans: Spans, items: Items, *, reconciled: bool) -> AnswerPieces:
    """Return sets of all IDs in spans inside some questions'."""
    counts = items.offsets[1:] - items.offsets[:-1]
    return AnswerPieces.of_sets(piece_keys(sources), spans, counts, items.ids, reconciled)
