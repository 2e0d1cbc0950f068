"""The readers of a participant's events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Generic, Self, TypeVar
from weakref import WeakSet

from storenode.sds.codec import bytes_of
from storenode.sds.limits import MAX_QUEUED_BYTES, MAX_QUEUED_EVENTS

_E = TypeVar("_E")


class Events(Generic[_E]):
    """A reader of the events of the transactions after one. Close it, or drop it.

    A reader that does not read holds the participant up: after 10,000 events, or 64 MiB of them,
    nothing more is received, until it reads or is closed.
    """

    def __init__(self, hub: EventHub[_E], after_commit: int) -> None:
        self._hub = hub
        self.after_commit = after_commit
        self._queue: deque[_E] = deque()
        self._bytes = 0
        self._closed = False
        hub.readers.add(self)

    def __aiter__(self) -> AsyncIterator[_E]:
        return self

    async def __anext__(self) -> _E:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            await self._hub.changed()
        was_full, event = self.full, self._queue.popleft()
        self._bytes -= bytes_of(event)
        if was_full and not self.full:
            self._hub.stir()
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def full(self) -> bool:
        """A flag: the participant waits for this reader."""
        return len(self._queue) >= MAX_QUEUED_EVENTS or self._bytes >= MAX_QUEUED_BYTES

    def put(self, commit: int, events: Sequence[_E]) -> None:
        """Add the events of a transaction."""
        if commit > self.after_commit and not self._closed:
            self._queue.extend(events)
            self._bytes += sum(map(bytes_of, events))

    def close(self) -> None:
        """End: what is queued may still be read."""
        self._closed = True
        self._hub.readers.discard(self)
        self._hub.stir()


class EventHub(Generic[_E]):
    """The readers of a participant. ``failure`` is raised to those that wait."""

    def __init__(self) -> None:
        self.readers: WeakSet[Events[_E]] = WeakSet()
        self._change = asyncio.Event()
        self.failure: Exception | None = None

    def put(self, commit: int, events: list[_E]) -> None:
        """Add events to all readers."""
        for reader in tuple(self.readers):
            reader.put(commit, events)
        self.stir()

    def stir(self) -> None:
        """Wake all tasks that wait for a change."""
        self._change.set()
        self._change = asyncio.Event()

    def fail(self, error: Exception) -> None:
        """Raise an error to all readers from now on."""
        self.failure = self.failure or error
        self.stir()

    def end(self) -> None:
        """Close all readers, which may still read their queues."""
        for reader in tuple(self.readers):
            reader.close()

    async def changed(self) -> None:
        """Wait for a change.

        Raises:
            Exception: the participant has failed.
        """
        if self.failure is not None:
            raise self.failure
        await self._change.wait()

    async def room(self) -> None:
        """Wait until no reader is full; one that has gone away does not count."""
        while any(reader.full for reader in tuple(self.readers)):
            await self.changed()
