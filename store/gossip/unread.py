"""Unread events: messages that too few stores have confirmed ("UnreadEvents", "read_confirms").

An event needs a number of confirmations. Each is the name of a store, and counts once. With enough
of them the event is read, and leaves; it leaves unconfirmed when it has waited for too long, or
when there are too many. Until then it is announced again at an interval, to those stores that
have not confirmed it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from store.gossip.events import Confirm, Effect, Read


@dataclass(slots=True)
class _Unread:
    """An unread event: confirmations needed and received, and times."""

    needed: int
    began_ns: int
    due_ns: int
    content: bytes
    stores: dict[str, None] = field(default_factory=dict)


class UnreadEvents:
    """The unread events, in the order in which they are due to be announced again.

    ``limit``: how many may wait; with more, the first expires, which is announced next.
    """

    def __init__(self, limit: int, age_ns: int, interval_ns: int) -> None:
        self._limit = limit
        self._age_ns = age_ns
        self._interval_ns = interval_ns
        self._events: OrderedDict[bytes, _Unread] = OrderedDict()
        self._reports: dict[str, tuple[list[bytes], list[int]]] = {}
        self._read: list[bytes] = []

    def __contains__(self, digest: bytes) -> bool:
        """Return True if an event waits for confirmations."""
        return digest in self._events

    def ids(self) -> Iterator[bytes]:
        """Return all events, the next due first."""
        return iter(self._events)

    def add(
        self, now_ns: int, digest: bytes, needed: int, age_ns: int = 0, content: bytes = b""
    ) -> list[bytes]:
        """Let an event wait for confirmations, or for more; return those that expire for it.

        ``content``: its content digest.
        """
        event = self._events.get(digest)
        if event is not None:
            event.needed = max(event.needed, needed)
            return []
        self._events[digest] = _Unread(needed, now_ns - age_ns, now_ns + self._interval_ns, content)
        if len(self._events) <= self._limit:
            return []
        return [self._events.popitem(last=False)[0]]

    def confirm(self, digest: bytes, store_id: str, *, report: bool = True) -> bool:
        """Count a confirmation, and end the wait with the last one; return False if it was known.

        ``report`` False: the database has it already.
        """
        event = self._events.get(digest)
        if event is None or store_id in event.stores:
            return False
        event.stores[store_id] = None
        if report:
            self._report(digest, store_id, len(event.stores))
        if len(event.stores) >= event.needed:
            self.drop([digest])
            self._read.append(digest)
        return True

    def report(self, digest: bytes) -> None:
        """Report the known confirmations of an event again."""
        event = self._events.get(digest)
        if event is not None:
            for store_id in event.stores:
                self._report(digest, store_id, len(event.stores))

    def flush(self) -> list[Effect]:
        """Return the confirmations to keep, and the events that are read, since the last call."""
        effects: list[Effect] = [
            Confirm(store_id, ids, counts) for store_id, (ids, counts) in self._reports.items()
        ]
        if self._read:
            effects.append(Read(self._read))
        self._reports, self._read = {}, []
        return effects

    def drop(self, digests: Iterable[bytes]) -> None:
        """Remove events."""
        for digest in digests:
            self._events.pop(digest, None)

    def lacks(self, digest: bytes, store_id: str) -> bool:
        """Return True if the confirmation of a store is missing."""
        return store_id not in self._events[digest].stores

    def content_of(self, digest: bytes) -> bytes | None:
        """Return the content digest of an event; None: it does not wait."""
        event = self._events.get(digest)
        return None if event is None else event.content

    def take_due(self, now_ns: int, most: int) -> tuple[list[bytes], list[bytes]]:
        """Return the events to announce again, and remove and return those that have expired."""
        due: list[bytes] = []
        for digest, event in self._events.items():
            if event.due_ns > now_ns or len(due) == most:
                break
            due.append(digest)
        expired = [each for each in due if now_ns - self._events[each].began_ns >= self._age_ns]
        self.drop(expired)
        again = [each for each in due if each in self._events]
        for digest in again:
            self._events[digest].due_ns = now_ns + self._interval_ns
            self._events.move_to_end(digest)
        return again, expired

    @property
    def due_ns(self) -> int | None:
        """The time of the next announcement; None: no event waits."""
        return next((event.due_ns for event in self._events.values()), None)

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        assert len(self._events) <= self._limit
        assert all(len(each.stores) < each.needed for each in self._events.values())
        due = [event.due_ns for event in self._events.values()]
        assert due == sorted(due)
        assert not self._reports
        assert not self._read

    def _report(self, digest: bytes, store_id: str, count: int) -> None:
        ids, counts = self._reports.setdefault(store_id, ([], []))
        ids.append(digest)
        counts.append(count)
