"""A search for what two sides hold differently although fingerprints agree, by lattice sums.

    sums of a range differ
      one side ─ sums of its parts ───────────────────────────────────► the other
               ◄─ of parts that differ: sums of their parts, or a list ─
                ─ a list of the same span, or sums of its parts ───────►  and so on

Parts are aligned to time, from 32 days down to a nanosecond. Sums leave out what the reconciliation
has found the peer to lack, so honest differences are not searched for; a list has everything. What
two lists of one span come to replaces there what the reconciliation has found. A part that differs
and is not looked into makes the search incomplete. Parts that known conflicts explain are left out
first, and the others at random, so that lasting conflicts do not hide new differences.

Nothing resolves a conflict by itself, so that every session would find it again. The conflicts of
earlier sessions explain a difference of the sums: with the contents of the peer in place of its
own, a side comes to the sum of the peer, which cannot be forged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Final

import numpy as np

from reconcile.ids import SyncIds, less, match
from reconcile.lattice import DIGEST_BYTES, LatticeSum
from store.domain.partitioning import DAY_NS, HOUR_NS
from store.domain.view import Span
from store.sync.errors import ProtocolBrokenError
from store.sync.index.views import StoredView, in_thread_if
from store.sync.limits import (
    FEW_LISTED_IDS,
    MAX_KNOWN_CONFLICTS,
    MAX_LISTED_IDS,
    MAX_SEARCH_ROUNDS,
    MAX_SEARCHED_SPANS,
    REMEMBERED_NS,
)
from store.sync.session.report import ContentConflict
from storenode.message.limits import CONTENT_DIGEST_BYTES
from storenode.wire.storenode.v1.peer_pb2 import SumSearch

_STEPS_NS: Final = (
    *(32 * DAY_NS, DAY_NS, HOUR_NS, HOUR_NS // 60, HOUR_NS // 3600),
    *(2**24, 2**18, 2**12, 2**6, 1),
)
"""The lengths of parts: each is at most 64 times the next one."""


@dataclass(slots=True)
class PeerNotes:
    """The findings of the last sessions with a peer.

    ``equal``: the last one found nothing. ``conflicts``: by hash, each until it is forgotten.
    """

    equal: bool = False
    conflicts: dict[bytes, tuple[int, ContentConflict]] = field(default_factory=dict)

    def known(self, now_ns: int) -> list[ContentConflict]:
        """Return the known conflicts at a time of a monotonic clock, ascending."""
        known = [each for until_ns, each in self.conflicts.values() if now_ns < until_ns]
        return sorted(known, key=lambda each: (each.timestamp, each.message_hash))

    def update(
        self, now_ns: int, conflicts: Sequence[ContentConflict], spans: Sequence[Span]
    ) -> None:
        """Replace what is known about spans of time by the conflicts found in them."""
        before = {each: entry for each, entry in self.conflicts.items() if now_ns < entry[0]}
        entries = {
            digest: entry
            for digest, entry in before.items()
            if not any(low <= entry[1].timestamp < high for low, high in spans)
        }
        for each in conflicts:
            # A repeated conflict keeps its time: at its end it is searched for again.
            until_ns, _ = before.get(each.message_hash, (now_ns + REMEMBERED_NS, each))
            entries[each.message_hash] = until_ns, each
        newest = list(entries.items())[-MAX_KNOWN_CONFLICTS:]
        self.conflicts = dict(newest)


class Search:
    """A side of a search in a span; ``sent``, with digests, is what the peer lacks.

    ``seed``: at most 64 random bytes. ``limit``: how many differences may be found. ``known``: the
    conflicts of earlier sessions with the peer, ascending.

    Attributes:
        whole: the span.
        rounds: the steps of this side.
        complete: all that differs was looked into, by both sides.
        settled: the spans of which both sides know both lists.
        to_send: what the peer lacks there.
        to_receive: what this side lacks there.
        conflicts: the IDs there that have different contents.
    """

    def __init__(
        self,
        view: StoredView,
        whole: Span,
        sent: SyncIds,
        seed: bytes,
        limit: int,
        *,
        known: Sequence[ContentConflict] = (),
    ) -> None:
        self._view = view
        self.whole = whole
        self._known = known
        self._total = LatticeSum()
        self._sent = sent
        self._seed = seed
        self._limit = limit
        self._open_spans: list[Span] = [whole]
        self._awaited: set[Span] = set()
        self._divided: list[Span] = []
        self._lists: dict[Span, SyncIds] = {}
        self.rounds = 0
        self.complete = True
        self.settled: list[Span] = []
        self.to_send: list[SyncIds] = []
        self.to_receive: list[SyncIds] = []
        self.conflicts: list[ContentConflict] = []

    async def sum(self) -> bytes:
        """Return the digest of the sum of all; empty: it is not known.

        Raises:
            NotServingError: the database does not serve.
        """
        sums = await self._view.lattices([self.whole])
        if sums is None:
            return b""
        self._total = self._common(self.whole, sums[0])
        return self._total.digest()

    @property
    def known_conflicts(self) -> tuple[ContentConflict, ...]:
        """The conflicts of earlier sessions in the range."""
        return self._known_in(self.whole)

    def is_explained(self, peer_sum: bytes) -> bool:
        """Return True if the two sides differ in known conflicts only; after `sum`."""
        if not self.known_conflicts:
            return False
        return self._of_peer(self.whole, self._total).digest() == peer_sum

    async def begin(self) -> SumSearch:
        """Return the first step: the sums of the parts of all; raises as `sum`."""
        self._divided = self._open_spans
        return await self._step()

    async def answer(self, step: SumSearch) -> SumSearch:
        """Return the answer to a step of the peer; an empty one ends the search.

        Raises:
            ProtocolBrokenError: the step is none that may come now.
            NotServingError: the database does not serve.
        """
        lists = self._read(step)
        self.complete = self.complete and not step.more
        awaited, self._awaited = self._awaited, set()
        self._divided, self._lists = [], {}
        for span, count in await self._differing(step):
            await self._look_into(span, count)
        for span, theirs in lists:
            await self._compare(span, theirs, is_answer=span in awaited)
        return await self._step()

    async def _differing(self, step: SumSearch) -> list[tuple[Span, int]]:
        spans = spans_of(step.spans)
        sums = await self._view.lattices(spans) if spans else []
        if sums is None:
            self.complete = False
            return []
        is_much = len(spans) > MAX_SEARCHED_SPANS
        return await in_thread_if(is_much, self._choose, spans, sums, step.sums)

    def _choose(
        self, spans: list[Span], sums: Sequence[LatticeSum], joined: bytes
    ) -> list[tuple[Span, int]]:
        """Return the spans whose sums differ, with the number of messages there; not too many."""
        starts = range(0, len(joined), DIGEST_BYTES)
        digests = [joined[at : at + DIGEST_BYTES] for at in starts]
        differing = [
            (span, full.count, own, digest)
            for span, full, digest in zip(spans, sums, digests, strict=True)
            if (own := self._common(span, full)).digest() != digest
        ]
        if len(differing) > MAX_SEARCHED_SPANS:
            self.complete = False
            differing = sorted(differing, key=self._rank)[:MAX_SEARCHED_SPANS]
        return sorted((span, count) for span, count, *_ in differing)

    def _rank(self, differing: tuple[Span, int, LatticeSum, bytes]) -> tuple[bool, bytes]:
        """Return the sort key of a span: known conflicts last, and each session has its order."""
        span, _, own, digest = differing
        explained = self._of_peer(span, own).digest() == digest
        return explained, blake2b(repr(span).encode(), key=self._seed).digest()

    async def _look_into(self, span: Span, count: int) -> None:
        """Divide a span that differs, or list the messages there."""
        if count > FEW_LISTED_IDS and span[1] - span[0] > 1:
            self._divided.append(span)
            return
        own = await self._view.listed(span, MAX_LISTED_IDS)
        if own is None or self._is_full:
            self.complete = False
            return
        self._awaited.add(span)
        self._lists[span] = own

    async def _compare(self, span: Span, theirs: SyncIds, *, is_answer: bool) -> None:
        """Compare a list of the peer, and answer one that is no answer."""
        own = await self._view.listed(span, MAX_LISTED_IDS)
        if own is not None and (is_answer or not self._is_full):
            self._settle(span, own, theirs)
            if not is_answer:
                self._lists[span] = own
        elif own is None and span[1] - span[0] > 1:
            self._divided.append(span)
        else:
            self.complete = False

    def _settle(self, span: Span, own: SyncIds, theirs: SyncIds) -> None:
        """Note what the lists of both sides come to."""
        self.settled.append(span)
        found = match(own, theirs)
        both = found.places[found.found]
        only_own = np.ones(len(own), np.bool_)
        only_own[both] = False
        self.to_send.append(own[only_own])
        self.to_receive.append(theirs[~found.found])
        mine, other = own[both].known_digests, theirs[found.found].known_digests
        for row in np.flatnonzero((mine != other).any(axis=1)).tolist():
            digests = mine[row].tobytes(), other[row].tobytes()
            self.conflicts.append(ContentConflict(*own.at(int(both[row])), *digests))

    @property
    def _is_full(self) -> bool:
        """True: no more may be listed, as the lists of this step may all be differences."""
        found = [*self.to_send, *self.to_receive, *self._lists.values()]
        return sum(map(len, found)) + len(self.conflicts) > self._limit

    async def _step(self) -> SumSearch:
        """Return a step: the sums of the parts of the divided spans, and the lists."""
        self.rounds += 1
        parts = [part for span in sorted(self._divided) for part in parts_of(span)]
        sums = await self._view.lattices(parts) if parts else []
        if sums is None:
            self.complete, parts, sums = False, [], []
        digests = await in_thread_if(len(parts) > MAX_SEARCHED_SPANS, self._digests, parts, sums)
        self._open_spans = sorted([*parts, *self._awaited])
        lists = sorted(self._lists)
        messages = b"".join(self._lists[span].elements.tobytes() for span in lists)
        return SumSearch(
            spans=chain.from_iterable(parts),
            sums=b"".join(digests),
            listed=chain.from_iterable(lists),
            messages=messages,
            more=not self.complete,
        )

    def _digests(self, parts: list[Span], sums: Sequence[LatticeSum]) -> list[bytes]:
        return [self._common(*each).digest() for each in zip(parts, sums, strict=True)]

    def _known_in(self, span: Span) -> tuple[ContentConflict, ...]:
        low, high = (
            bisect_left(self._known, time_ns, key=lambda each: each.timestamp) for time_ns in span
        )
        return tuple(self._known[low:high])

    def _of_peer(self, span: Span, own_sum: LatticeSum) -> LatticeSum:
        """Return the own sum of a span with the contents of the peer in known conflicts."""
        if known := self._known_in(span):
            own_sum -= _sum_of(known, [each.own_digest for each in known])
            own_sum += _sum_of(known, [each.peer_digest for each in known])
        return own_sum

    def _common(self, span: Span, whole: LatticeSum) -> LatticeSum:
        """Return the sum of a span without what the peer lacks."""
        first, end = np.searchsorted(self._sent.timestamps, span)
        return whole - LatticeSum.of(self._sent[first:end].elements) if first < end else whole

    def _read(self, step: SumSearch) -> list[tuple[Span, SyncIds]]:
        """Return the listed spans of a step, each with its list.

        Raises:
            ProtocolBrokenError: the step is none that may come now.
        """
        _require(self.rounds < MAX_SEARCH_ROUNDS, "goes on for too long")
        listed = spans_of(step.listed)
        spans = sorted([*spans_of(step.spans), *listed])
        ascending = all(one[1] <= other[0] for one, other in pairwise(spans))
        _require(ascending and all(low < high for low, high in spans), "has spans that overlap")
        within = iter(self._open_spans)
        outer = next(within, None)
        for low, high in spans:
            while outer is not None and outer[1] <= low:
                outer = next(within, None)
            _require(outer is not None and outer[0] <= low and high <= outer[1], "has other spans")
        ids = SyncIds.of_elements(step.messages)
        _require(bool(np.all(less(ids[:-1], ids[1:]))), "has a list that does not ascend")
        lists = [ids[slice(*np.searchsorted(ids.timestamps, span))] for span in listed]
        _require(sum(map(len, lists)) == len(ids), "has messages outside of its lists")
        return list(zip(listed, lists, strict=True))


def _sum_of(conflicts: Sequence[ContentConflict], digests: Sequence[bytes]) -> LatticeSum:
    """Return the sum of messages in conflict with the contents that digests name."""
    ids = SyncIds.of([(each.timestamp, each.message_hash) for each in conflicts])
    rows = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, CONTENT_DIGEST_BYTES)
    return LatticeSum.of(SyncIds(ids.timestamps, ids.hashes, rows).elements)


def parts_of(span: Span) -> list[Span]:
    """Return the parts of a span that is longer than a nanosecond."""
    low, high = span
    step = next(each for each in _STEPS_NS if each < high - low)
    cuts = range((low // step + 1) * step, high, step)
    return list(pairwise([low, *cuts, high]))


def spans_of(times: Sequence[int]) -> list[Span]:
    """Return the spans of a ``SumSearch``."""
    return list(zip(times[::2], times[1::2], strict=True))


def has_spans(step: SumSearch) -> bool:
    """Return True if something is to be compared."""
    return bool(step.spans or step.listed)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ProtocolBrokenError(f"the peer's search {what}: see SumSearch in the schema")
