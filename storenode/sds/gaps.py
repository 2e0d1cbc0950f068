"""The detection of gaps by Bloom filters: of messages that we lack, and of those that peers lack.

**What we lack** (`GapDetector`): a filter is never wrong about a bit that is set, since its owner
has a message that set it. When the message is neither in our filter nor missing or lost by name, we
lack it without knowing its ID. A message may still be on its way, so a bit counts after a grace
period only. A filter whose shape is not known cannot be read, and one that reaches further back
than ours proves nothing: of these the peers are counted.

**What peers lack** (`PeerGaps`): with a short causal history, a message that one participant
acknowledged can be missing at another for good, if no message that the other receives names it. But
a filter is never wrong about a bit that is not set. When a received filter lacks recent messages of
our log, the next messages that we send name them in their causal history. A message that any
history names meanwhile need not be named again. A participant that learns of a message may still
neither fetch nor request it. What its filters go on lacking for long is therefore *offered*: sent
again like an answer to a request, a few times at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf, log
from typing import Final

from storenode.common.bounded import BoundedDict
from storenode.sds.bloom import Shape, filter_of, holds
from storenode.sds.clock import Clock
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Behind, CaughtUp
from storenode.sds.filters import Filters
from storenode.sds.limits import (
    MAX_BEHIND_PEERS,
    MAX_CLOCK,
    MAX_COMPARED_PEERS,
    MAX_EXPLAINED_IDS,
    MAX_GAP_IDS,
    MAX_LACKING_IDS,
    MAX_LACKING_PEERS,
    MAX_UNREAD_FILTERS,
)
from storenode.sds.log import OPEN_ENTRIES, MessageLog
from storenode.sds.pages import Key, LogEntry

MAX_SEARCHES: Final = 6
"""Searches for what one peer shows; the last covers everything, and then it is only displayed."""

_REACH_MS: Final = 600_000
_FACTOR: Final = 4
"""Each search reaches further back, and waits longer for its success, by this factor."""

_COMPARE_EVERY_MS: Final = 1_000

_SAME_REACH: Final = 0.95
"""A filter with fewer IDs than this part of ours reaches no further back."""

_MAX_FILL: Final = 0.95
"""A filter with more of its bits set says nothing."""


@dataclass(frozen=True, slots=True)
class _Unread:
    """A filter that was not compared yet."""

    lamport: int
    bits: bytes
    shape: Shape | None
    received_ms: int


@dataclass(slots=True)
class _Lack:
    """Bits of one peer. Those in ``fresh`` and ``aging`` may be of messages on their way."""

    since_ms: int
    turned_ms: int
    shape: Shape
    fresh: int = 0
    aging: int = 0
    proven: int = 0
    searches: int = 0
    due_ms: int = 0

    def turn(self, now_ms: int, grace_ms: int) -> None:
        """Move the bits on by age: each spends one whole period in ``aging``."""
        if now_ms - self.turned_ms >= grace_ms:
            self.turned_ms = now_ms
            self.proven |= self.aging
            self.aging, self.fresh = self.fresh, 0

    def reshape(self, shape: Shape) -> None:
        """Drop the bits of a former shape."""
        if shape != self.shape:
            self.shape = shape
            self.fresh = self.aging = self.proven = 0

    def explain(self, known: int) -> None:
        """Drop the bits of messages that are known by now."""
        self.fresh &= ~known
        self.aging &= ~known
        self.proven &= ~known


class GapDetector:
    """The messages that we lack by peers' filters. Times are running time, in milliseconds.

    ``grace_ms`` is None when filters are not compared. ``incomparable`` are the peers whose
    newest filter proves nothing.
    """

    __slots__ = (
        *("_compared_ms", "_compares", "_filters", "_grace_ms", "_unread"),
        *("compared", "incomparable", "peers"),
    )

    def __init__(self, filters: Filters, grace_ms: int | None) -> None:
        self._filters = filters
        self._compares = grace_ms is not None
        self._grace_ms = grace_ms or 0
        self.peers: dict[str, _Lack] = {}
        self.compared = BoundedDict[str, int](MAX_COMPARED_PEERS)
        self.incomparable = BoundedDict[str, None](MAX_COMPARED_PEERS)
        self._unread: dict[str, _Unread] = {}
        self._compared_ms = 0

    def shapes(self) -> set[Shape]:
        """Return the shapes of the filters that are needed."""
        waiting = {unread.shape for unread in self._unread.values() if unread.shape}
        return waiting | {lack.shape for lack in self.peers.values()}

    def look(
        self, sender_id: str, bloom_filter: bytes, shape: Shape | None, lamport: int, now_ms: int
    ) -> None:
        """Queue a peer's newest filter for a comparison with ours by the next sweep.

        ``shape``: what it is known to be, None: unknown.

        A comparison takes as long as the reception of a message, and a newer filter contains the
        older ones of its peer: so of many messages only the newest is compared.
        """
        if not self._compares:
            return
        before = self._unread.get(sender_id)
        if before is None or lamport >= before.lamport:
            self._unread[sender_id] = _Unread(lamport, bloom_filter, shape, now_ms)
        if len(self._unread) >= MAX_UNREAD_FILTERS:
            self._compare(now_ms)
            # What cannot be compared yet will come again.
            self._unread.clear()

    def sweep(
        self,
        missing: Collection[str],
        lost: Collection[str],
        clock: Clock,
        now_ms: int,
    ) -> tuple[list[Behind | CaughtUp], bool]:
        """Return the searches that are due, and the peers that no longer show anything.

        Also whether to show our own filter to the others: a search has failed.
        """
        if self.next_due_ms() > now_ms:
            return [], False
        self._compare(now_ms)
        if not self.peers:
            return [], False
        shapes = {lack.shape for lack in self.peers.values()}
        named = (*missing, *lost)
        if len(named) * len(shapes) > MAX_EXPLAINED_IDS:
            self._postpone(now_ms)
            return [], False
        known = {each: int.from_bytes(filter_of(each, named)) for each in shapes}
        found = self._due({each: known[each] | self._known(each) for each in shapes}, clock, now_ms)
        return found, any(isinstance(each, Behind) and each.searches > 1 for each in found)

    def _known(self, shape: Shape) -> int:
        """Return the bits that our messages explain; all of them while nothing can be compared."""
        own = self._filters.of(shape)
        return -1 if own is None else own.known()

    def _compare(self, now_ms: int) -> None:
        """Compare the waiting filters; one whose shape is not built yet goes on waiting."""
        known: dict[Shape, int] = {}
        for sender_id, unread in list(self._unread.items()):
            shape = unread.shape
            own = None if shape is None else self._filters.of(shape)
            if shape is None:
                self._cannot_compare(sender_id)
            elif own is None:
                continue
            else:
                if shape not in known:
                    known[shape] = own.known()
                reach = inf if own.complete else own.span() * _SAME_REACH
                self._compare_one(sender_id, unread, shape, known[shape], reach)
            del self._unread[sender_id]
        self._compared_ms = now_ms

    def _compare_one(
        self, sender_id: str, unread: _Unread, shape: Shape, known: int, reach: float
    ) -> None:
        self.incomparable.pop(sender_id, None)
        bits = int.from_bytes(unread.bits)
        lacking = bits & ~known
        if lacking and _inserted(shape, bits) >= reach:
            # What the peer has shown before is neither more nor less true.
            self._cannot_compare(sender_id)
            return
        if sender_id in self.peers:
            self.peers[sender_id].reshape(shape)
        if not lacking:
            self._agreed(sender_id, unread.received_ms)
            return
        lack = self._lack(sender_id, shape, unread.received_ms)
        if lack is not None:
            lack.fresh |= lacking

    def _cannot_compare(self, sender_id: str) -> None:
        self.incomparable[sender_id] = None

    def _postpone(self, now_ms: int) -> None:
        for lack in self.peers.values():
            lack.turned_ms = now_ms

    def _due(self, known: dict[Shape, int], clock: Clock, now_ms: int) -> list[Behind | CaughtUp]:
        found: list[Behind | CaughtUp] = []
        for sender_id, lack in list(self.peers.items()):
            lack.explain(known[lack.shape])
            lack.turn(now_ms, self._grace_ms)
            if not (lack.fresh or lack.aging or lack.proven):
                del self.peers[sender_id]
                self._agreed(sender_id, now_ms)
                if lack.searches:
                    found.append(CaughtUp(sender_id))
            elif lack.proven and lack.searches < MAX_SEARCHES and now_ms >= lack.due_ms:
                found.append(self._search(sender_id, lack, clock, now_ms))
        return found

    def at_least(self) -> int:
        """Return how many messages we lack at least, by the peer that shows the most."""
        counts = (_count(lack) for lack in self.peers.values() if lack.searches)
        return max(counts, default=0)

    def next_due_ms(self) -> float:
        """Return when `sweep` may find something."""
        turned = (lack.turned_ms for lack in self.peers.values())
        unread_ms = self._compared_ms + _COMPARE_EVERY_MS if self._unread else inf
        return min(min(turned, default=inf) + self._grace_ms, unread_ms)

    def _search(self, sender_id: str, lack: _Lack, clock: Clock, now_ms: int) -> Behind:
        step = _FACTOR**lack.searches
        lack.searches += 1
        lack.due_ms = now_ms + self._grace_ms * step
        reach_ms = _REACH_MS * step
        since_ms = (
            0 if lack.searches == MAX_SEARCHES else max(clock.unix_ms(lack.since_ms) - reach_ms, 0)
        )
        return Behind(sender_id, since_ms, _count(lack), lack.searches)

    def _agreed(self, sender_id: str, now_ms: int) -> None:
        if sender_id not in self.peers:
            self.compared[sender_id] = now_ms

    def _lack(self, sender_id: str, shape: Shape, now_ms: int) -> _Lack | None:
        """Return a peer's entry; None while there are too many and one is still searched for.

        The others go on showing that something is lacking when one makes room.
        """
        known = self.peers.get(sender_id)
        if known is not None:
            return known
        if len(self.peers) >= MAX_BEHIND_PEERS:
            if any(each.searches < MAX_SEARCHES for each in self.peers.values()):
                return None
            del self.peers[next(iter(self.peers))]
        made = _Lack(self.compared.get(sender_id, now_ms), now_ms, shape)
        self.peers[sender_id] = made
        return made


def _count(lack: _Lack) -> int:
    return -(-lack.proven.bit_count() // lack.shape.hashes)


def _inserted(shape: Shape, bits: int) -> float:
    """Return the estimated number of IDs in a filter."""
    fill = bits.bit_count() / shape.bits
    return inf if fill > _MAX_FILL else -shape.bits / shape.hashes * log(1 - fill)


GAP_GRACE_MS: Final = 10_000
"""Messages younger than this may still be on their way."""

MAX_TELLINGS: Final = 3
"""How often one message is named before its absence must show again."""

MAX_OFFERS: Final = 2
"""How often one message is offered because of one participant."""

_END: Final[Key] = (MAX_CLOCK + 1, "")


@dataclass(slots=True)
class _Lacking:
    """A message that a filter lacks, since when, and how often it was offered."""

    since_ms: int
    offers: int = 0

    def is_due(self, now_ms: int, after_ms: int) -> bool:
        """Return True if it is offered now."""
        due = self.offers < MAX_OFFERS and now_ms - self.since_ms >= after_ms * (self.offers + 1)
        self.offers += due
        return due


class PeerGaps:
    """The IDs that a peer lacks, and how often each was named.

    ``lacking`` has them by participant too; after the longest delay of SDS-R they are offered.
    """

    __slots__ = (
        *("_below", "_offer_after_ms", "_passed", "_window"),
        *("every_ms", "lacking", "looked_ms", "pending"),
    )

    def __init__(self, config: ChannelConfig) -> None:
        self.every_ms = config.gap_every_ms
        self._offer_after_ms = config.repair.request_max_ms if config.repair else 0
        self._window = config.gap_window
        self.lacking = BoundedDict[str, dict[str, _Lacking]](MAX_LACKING_PEERS)
        self.looked_ms: int | None = None
        self.pending: dict[str, int] = {}
        self._below = _END
        self._passed = 0

    def is_time(self, now_ms: int) -> bool:
        """Return True if a filter may be compared again, which takes a while."""
        return self.looked_ms is None or now_ms - self.looked_ms >= self.every_ms

    def entries(self, log: MessageLog, shape: Shape, of_ms: int, now_ms: int) -> list[LogEntry]:
        """Return the entries to compare with a filter: at most twice ``gap_window``.

        The filter has a shape, and is of a time: the last entries from a while before it, and some
        of all that it shows, further down with each look. Those whose clock is ahead of now are
        among them: how old they are is not known, and to wait until they are no longer ahead
        could take years.
        """
        count = min(self._window, shape.capacity // 4)
        further = self._further(log, shape.capacity, count)
        before_ms = max(min(of_ms, now_ms) - GAP_GRACE_MS, 0)
        found = log.preceding((before_ms, ""), count)
        first = found[0].key if found else (before_ms, "")
        return found + [each for each in further if each.key < first or each.lamport > now_ms]

    def look(
        self,
        bloom_filter: bytes,
        shape: Shape,
        sender_id: str,
        entries: Iterable[LogEntry],
        now_ms: int,
    ) -> list[str]:
        """Compare a participant's filter with recent entries; return what to offer."""
        self.looked_ms = now_ms
        offered: list[str] = []
        lacking = self.lacking[sender_id] = self.lacking.get(sender_id, {})
        for entry in entries:
            message_id = entry.message_id
            if entry.sender_id == sender_id:
                continue
            if holds(bloom_filter, shape.probe(message_id)):
                lacking.pop(message_id, None)
                continue
            if len(self.pending) < MAX_GAP_IDS:
                self.pending.setdefault(message_id, 0)
            if message_id in lacking or len(lacking) < MAX_LACKING_IDS:
                lack = lacking.setdefault(message_id, _Lacking(now_ms))
                if lack.is_due(now_ms, self._offer_after_ms):
                    offered.append(message_id)
        return offered

    def behind(self) -> dict[str, int]:
        """Return how many of the compared messages each participant's filters lack."""
        return {sender_id: len(lacks) for sender_id, lacks in self.lacking.items() if lacks}

    def named(self, message_id: str) -> None:
        """Record that a history names a message."""
        self.pending.pop(message_id, None)

    def take(self, count: int) -> list[str]:
        """Return IDs for the causal history of the message that is sent now."""
        chosen = list(self.pending)[:count]
        for message_id in chosen:
            times = self.pending.pop(message_id) + 1
            if times < MAX_TELLINGS:
                self.pending[message_id] = times
        return chosen

    def _further(self, log: MessageLog, capacity: int, count: int) -> list[LogEntry]:
        if not count:
            return []
        left = _reach(log, capacity) - self._passed
        found = log.preceding(self._below, min(count, left)) if left > 0 else []
        at_end = len(found) < count
        self._below = _END if at_end else found[0].key
        self._passed = 0 if at_end else self._passed + len(found)
        return found


def _reach(log: MessageLog, capacity: int) -> int:
    """Return how many entries a complete filter shows and a history can name.

    A filter that may have been rolled over has the newer half of its capacity for certain, in the
    order of their coming, which is not quite that of the log.
    """
    entries = len(log) + log.pruned
    return min(OPEN_ENTRIES, entries if entries <= capacity * 3 // 4 else capacity // 4)
