"""Noticing that we lack something: a bit of a peer's filter that no message known here explains.

A filter is never wrong about a bit that is set: its owner has a message that set it. When the
message is neither in our filter nor missing or lost by name, we lack it without knowing its ID. A
message may still be on its way, so a bit counts after a grace period only. A filter whose shape is
not known cannot be read, and one that reaches further back than ours proves nothing: of these the
peers are counted.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import inf, log
from typing import Final

from storenode.common.bounded import BoundedDict
from storenode.sds.bloom import Shape, filter_of
from storenode.sds.clock import Clock
from storenode.sds.events import Behind, CaughtUp
from storenode.sds.filters import Filters
from storenode.sds.limits import (
    MAX_BEHIND_PEERS,
    MAX_COMPARED_PEERS,
    MAX_EXPLAINED_IDS,
    MAX_UNREAD_FILTERS,
)

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
        """Let the bits grow older: each spends one whole period in ``aging``."""
        if now_ms - self.turned_ms >= grace_ms:
            self.turned_ms = now_ms
            self.proven |= self.aging
            self.aging, self.fresh = self.fresh, 0

    def reshape(self, shape: Shape) -> None:
        """The peer's filters are of another shape now: bits of the former mean nothing there."""
        if shape != self.shape:
            self.shape = shape
            self.fresh = self.aging = self.proven = 0

    def explain(self, known: int) -> None:
        """Drop the bits of messages that are known by now."""
        self.fresh &= ~known
        self.aging &= ~known
        self.proven &= ~known


class Lacks:
    """What peers' filters show that we lack. Times are running time, in milliseconds.

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
        """What is needed of the filters."""
        waiting = {unread.shape for unread in self._unread.values() if unread.shape}
        return waiting | {lack.shape for lack in self.peers.values()}

    def look(
        self, sender_id: str, bloom_filter: bytes, shape: Shape | None, lamport: int, now_ms: int
    ) -> None:
        """Have a peer's newest filter compared with our own, by the next sweep.

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
        """What is proven and has to be searched now, and which peers no longer show anything.

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
        """What explains the bits of a filter; nothing shows in one that cannot be compared yet."""
        own = self._filters.of(shape)
        return -1 if own is None else own.known()

    def _compare(self, now_ms: int) -> None:
        """Compare what waits; what has come too early for its shape goes on waiting."""
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
        """How many messages we lack at least, by the peer that shows the most."""
        counts = (_count(lack) for lack in self.peers.values() if lack.searches)
        return max(counts, default=0)

    def next_due_ms(self) -> float:
        """When `sweep` may find something."""
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
        """A peer's entry; None while there are too many, and one is still searched for.

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
    """Estimated number of IDs in a filter."""
    fill = bits.bit_count() / shape.bits
    return inf if fill > _MAX_FILL else -shape.bits / shape.hashes * log(1 - fill)
