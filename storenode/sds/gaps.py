"""The detection of gaps by Bloom filters: of messages that we lack, and of those that peers lack.

**What we lack** (`GapDetector`): a filter is never wrong about a bit that is set, since its owner
has a message that set it. When the message is neither in our filter nor missing or lost by name, we
lack it without knowing its ID. A message may still be on its way, so a bit counts after a grace
period only. A filter of another size cannot be read, and one that reaches further back than ours
proves nothing: of these the peers are counted.

**What peers lack** (`PeerGaps`): with a short causal history, a message that one participant
acknowledged can be missing at another for good, if no message that the other receives names it. But
a filter is never wrong about a bit that is not set. When a received filter lacks recent messages of
our log, the next messages that we send name them in their causal history. A message that any
history names meanwhile need not be named again. A participant that learns of a message may still
neither fetch nor request it. What its filters continue lacking for long is therefore *offered*:
sent again like an answer to a request, a few times at most.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from storenode.common.bounded_dict import BoundedDict
from storenode.sds.bloom import RollingFilter, filter_of, holds
from storenode.sds.codec import SdsMessage
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Behind, CaughtUp
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
from storenode.sds.log import Key, LogEntry, MessageLog
from storenode.sds.schedule import Clock

MAX_SEARCHES: Final = 6
"""Searches for what one peer shows; the last covers everything, and then it is only displayed."""

_REACH_MS: Final = 600_000
_FACTOR: Final = 4
"""The factor by which each search reaches further back and waits longer for its success."""

_COMPARE_EVERY_MS: Final = 1_000
_SAME_REACH: Final = 0.95
"""A filter with fewer IDs than this part of ours reaches no further back."""


class _Unread(NamedTuple):
    """A filter that was not compared yet."""

    lamport: int
    bits: int
    received_ms: int


@dataclass(slots=True)
class _Lack:
    """Bits of one peer. Those in ``fresh`` and ``aging`` may be of messages on their way."""

    since_ms: int
    turned_ms: int
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

    def __init__(self, own: RollingFilter, grace_ms: int | None) -> None:
        self._filter = own
        self._compares = grace_ms is not None
        self._grace_ms = grace_ms or 0
        self.peers: dict[str, _Lack] = {}
        self.compared = BoundedDict[str, int](MAX_COMPARED_PEERS)
        self.incomparable = BoundedDict[str, None](MAX_COMPARED_PEERS)
        self._unread: dict[str, _Unread] = {}
        self._compared_ms = 0

    def look(self, sender_id: str, bloom_filter: bytes, lamport: int, now_ms: int) -> None:
        """Queue a peer's newest filter for a comparison with ours by the next sweep.

        A comparison takes as long as the reception of a message, and a newer filter contains the
        older ones of its peer: so of many messages only the newest is compared.
        """
        if not self._compares:
            return
        if not self._filter.shape.reads(bloom_filter):
            self._unread.pop(sender_id, None)
            self.incomparable[sender_id] = None
            return
        before = self._unread.get(sender_id)
        if before is None or lamport >= before.lamport:
            self._unread[sender_id] = _Unread(lamport, int.from_bytes(bloom_filter), now_ms)
        if len(self._unread) >= MAX_UNREAD_FILTERS:
            self._compare(now_ms)

    def sweep(
        self,
        missing: Collection[str],
        lost: Collection[str],
        clock: Clock,
        now_ms: int,
    ) -> list[Behind | CaughtUp]:
        """Return the searches that are due, and the peers that no longer show anything."""
        if self.next_due_ms() > now_ms:
            return []
        self._compare(now_ms)
        if not self.peers:
            return []
        named = (*missing, *lost)
        if len(named) > MAX_EXPLAINED_IDS:
            for lack in self.peers.values():
                lack.turned_ms = now_ms
            return []
        known = self._filter.known() | int.from_bytes(filter_of(self._filter.shape, named))
        return self._due(known, clock, now_ms)

    def at_least(self) -> int:
        """Return how many messages we lack at least, by the peer that shows the most."""
        counts = (self._count(lack) for lack in self.peers.values() if lack.searches)
        return max(counts, default=0)

    def next_due_ms(self) -> float:
        """Return when `sweep` may find something."""
        turned = (lack.turned_ms for lack in self.peers.values())
        unread_ms = self._compared_ms + _COMPARE_EVERY_MS if self._unread else inf
        return min(min(turned, default=inf) + self._grace_ms, unread_ms)

    def _compare(self, now_ms: int) -> None:
        """Compare the waiting filters."""
        own = self._filter
        known = own.known()
        reach = inf if own.complete else own.span() * _SAME_REACH
        for sender_id, unread in self._unread.items():
            lacking = unread.bits & ~known
            if lacking and own.shape.inserted(unread.bits) >= reach:
                # What the peer has shown before is neither more nor less true.
                self.incomparable[sender_id] = None
                continue
            self.incomparable.pop(sender_id, None)
            if not lacking:
                self._agreed(sender_id, unread.received_ms)
            elif (lack := self._lack(sender_id, unread.received_ms)) is not None:
                lack.fresh |= lacking
        self._unread.clear()
        self._compared_ms = now_ms

    def _due(self, known: int, clock: Clock, now_ms: int) -> list[Behind | CaughtUp]:
        found: list[Behind | CaughtUp] = []
        for sender_id, lack in list(self.peers.items()):
            lack.explain(known)
            lack.turn(now_ms, self._grace_ms)
            if not (lack.fresh or lack.aging or lack.proven):
                del self.peers[sender_id]
                self._agreed(sender_id, now_ms)
                if lack.searches:
                    found.append(CaughtUp(sender_id))
            elif lack.proven and lack.searches < MAX_SEARCHES and now_ms >= lack.due_ms:
                found.append(self._search(sender_id, lack, clock, now_ms))
        return found

    def _search(self, sender_id: str, lack: _Lack, clock: Clock, now_ms: int) -> Behind:
        step = _FACTOR**lack.searches
        lack.searches += 1
        lack.due_ms = now_ms + self._grace_ms * step
        reach_ms = _REACH_MS * step
        since_ms = (
            0 if lack.searches == MAX_SEARCHES else max(clock.unix_ms(lack.since_ms) - reach_ms, 0)
        )
        return Behind(sender_id, since_ms, self._count(lack), lack.searches)

    def _agreed(self, sender_id: str, now_ms: int) -> None:
        if sender_id not in self.peers:
            self.compared[sender_id] = now_ms

    def _lack(self, sender_id: str, now_ms: int) -> _Lack | None:
        """Return a peer's entry; None while there are too many and one is still searched for.

        The others continue showing that something is lacking when one makes room.
        """
        known = self.peers.get(sender_id)
        if known is not None:
            return known
        if len(self.peers) >= MAX_BEHIND_PEERS:
            if any(each.searches < MAX_SEARCHES for each in self.peers.values()):
                return None
            del self.peers[next(iter(self.peers))]
        made = self.peers[sender_id] = _Lack(self.compared.get(sender_id, now_ms), now_ms)
        return made

    def _count(self, lack: _Lack) -> int:
        return -(-lack.proven.bit_count() // self._filter.shape.hashes)


GAP_GRACE_MS: Final = 10_000
"""Messages younger than this may still be on their way."""

MAX_NAMINGS: Final = 3
"""The number of times that a message is named before its absence must show again."""

MAX_OFFERS: Final = 2
"""The number of times that a message is offered because of one participant."""

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

    def __init__(self, config: ChannelConfig) -> None:
        self.every_ms = config.gap_every_ms
        self._offer_after_ms = config.repair.request_max_ms if config.repair else 0
        self._shape = config.filter
        self._window = config.gap_window
        self.lacking = BoundedDict[str, dict[str, _Lacking]](MAX_LACKING_PEERS)
        self.looked_ms: int | None = None
        self.pending: dict[str, int] = {}
        self._below = _END
        self._passed = 0

    def look(
        self,
        message: SdsMessage,
        bloom_filter: bytes,
        log: MessageLog,
        clock: Clock,
        now_ms: int,
    ) -> list[str]:
        """Compare a participant's filter with entries of our log; return what to offer.

        That takes a while, and is done once in ``every_ms`` at most.
        """
        if self.looked_ms is not None and now_ms - self.looked_ms < self.every_ms:
            return []
        self.looked_ms, sender_id = now_ms, message.sender_id
        offered: list[str] = []
        lacking = self.lacking[sender_id] = self.lacking.get(sender_id, {})
        for entry in self._entries(log, message.lamport or 0, clock.unix_ms(now_ms)):
            message_id = entry.message_id
            if entry.sender_id == sender_id:
                continue
            if holds(bloom_filter, self._shape.probe(message_id)):
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

    def take(self, count: int) -> list[str]:
        """Return IDs for the causal history of the message that is sent now."""
        chosen = list(self.pending)[:count]
        for message_id in chosen:
            times = self.pending.pop(message_id) + 1
            if times < MAX_NAMINGS:
                self.pending[message_id] = times
        return chosen

    def _entries(self, log: MessageLog, of_ms: int, now_ms: int) -> list[LogEntry]:
        """Return the entries to compare with a filter: at most twice ``gap_window``.

        They are the last entries from a while before the time ``of_ms`` of the filter, and some
        of all that it shows, further down with each look. Those whose clock is ahead of now are
        among them: how old they are is not known, and to wait until they are no longer ahead
        could take years.
        """
        count = min(self._window, self._shape.capacity // 4)
        further = self._further(log, count)
        before_ms = max(min(of_ms, now_ms) - GAP_GRACE_MS, 0)
        found = log.preceding((before_ms, ""), count)
        first = found[0].key if found else (before_ms, "")
        return found + [each for each in further if each.key < first or each.lamport > now_ms]

    def _further(self, log: MessageLog, count: int) -> list[LogEntry]:
        if not count:
            return []
        left = self._reach(log) - self._passed
        found = log.preceding(self._below, min(count, left)) if left > 0 else []
        at_end = len(found) < count
        self._below = _END if at_end else found[0].key
        self._passed = 0 if at_end else self._passed + len(found)
        return found

    def _reach(self, log: MessageLog) -> int:
        """Return how many entries a complete filter shows.

        A filter that may have been rolled over has the newer half of its capacity for certain, in
        the order of their coming, which is not quite that of the log.
        """
        capacity = self._shape.capacity
        return len(log) if len(log) <= capacity * 3 // 4 else capacity // 4
