"""Events that wait for parents which are not held; they are stored meanwhile.

A parent is *doubtful* until it was looked up, and *missing* from then on until it is held. An
event waits while a parent of it is missing. A parent that never comes is waited for until too
many events wait; then the one that began first does so no longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

_LINKS_PER_EVENT: Final = 4
"""Parents of all waiting events together: so many times `GossipConfig.max_waiting`."""


@dataclass(slots=True)
class _Event:
    doubtful: dict[bytes, None] = field(default_factory=dict)
    missing: dict[bytes, None] = field(default_factory=dict)


class IncompleteEvents:
    """The events that wait, and the parents that they wait for."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._link_limit = _LINKS_PER_EVENT * limit
        self._links = 0
        self._events: OrderedDict[bytes, _Event] = OrderedDict()
        self._awaited: dict[bytes, dict[bytes, None]] = {}

    def __len__(self) -> int:
        """Return how many events have a parent that is doubtful or missing."""
        return len(self._events)

    def awaits(self, parent: bytes) -> bool:
        """Return True if an event waits, or may wait, for this one."""
        return parent in self._awaited

    def parents(self, most: int) -> Iterator[bytes]:
        """Return some awaited parents."""
        return islice(self._awaited, most)

    def doubt(self, event: bytes, parents: Iterable[bytes]) -> list[bytes]:
        """Add doubtful parents; return the events that no longer wait, for lack of room."""
        entry = self._events.setdefault(event, _Event())
        for parent in parents:
            if parent not in entry.missing and parent not in entry.doubtful:
                entry.doubtful[parent] = None
                self._awaited.setdefault(parent, {})[event] = None
                self._links += 1
        released = []
        while len(self._events) > self._limit or self._links > self._link_limit:
            oldest, entry = self._events.popitem(last=False)
            for parent in (*entry.doubtful, *entry.missing):
                self._unlink(parent, oldest)
            released.append(oldest)
        return released

    def lack(self, parent: bytes) -> list[bytes]:
        """Note that a parent is not stored; return the events that wait for it from now on."""
        changed = []
        for event in self._awaited.get(parent, ()):
            entry = self._events[event]
            if parent in entry.doubtful:
                del entry.doubtful[parent]
                entry.missing[parent] = None
                changed.append(event)
        return changed

    def find(self, parent: bytes) -> list[bytes]:
        """Note that a parent is stored; return the events that no longer wait for it."""
        changed = []
        for event in self._awaited.pop(parent, ()):
            entry = self._events[event]
            self._links -= 1
            if parent in entry.missing:
                del entry.missing[parent]
                changed.append(event)
            else:
                del entry.doubtful[parent]
            if not entry.missing and not entry.doubtful:
                del self._events[event]
        return changed

    def missing(self, event: bytes) -> tuple[bytes, ...]:
        """Return the parents that an event waits for."""
        entry = self._events.get(event)
        return () if entry is None else tuple(entry.missing)

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        assert len(self._events) <= self._limit
        assert self._links <= self._link_limit
        links = {(parent, event) for parent, them in self._awaited.items() for event in them}
        assert all(self._awaited.values())
        assert len(links) == self._links
        assert links == {
            (parent, event)
            for event, entry in self._events.items()
            for parent in (*entry.doubtful, *entry.missing)
        }
        for entry in self._events.values():
            assert entry.doubtful or entry.missing
            assert not entry.doubtful.keys() & entry.missing.keys()

    def _unlink(self, parent: bytes, event: bytes) -> None:
        events = self._awaited[parent]
        del events[event]
        self._links -= 1
        if not events:
            del self._awaited[parent]
