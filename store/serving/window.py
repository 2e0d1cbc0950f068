"""Bounded room for requests that are decoded and not yet answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from store.serving.failure import busy


class Budget:
    """A number of bytes that calls take and give back; whoever waits is served in turn.

    One request larger than the whole budget passes when nothing else is under way. ``what`` takes
    of it is for the refusal.
    """

    def __init__(self, limit_bytes: int, what: str = "requests") -> None:
        self.limit_bytes = limit_bytes
        self._what = what
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used_bytes(self) -> int:
        """What is taken now."""
        return self._used_bytes

    @contextmanager
    def room(self, size_bytes: int) -> Iterator[None]:
        """Take for a while, without waiting.

        Raises:
            CallFailure: there is no room, or somebody waits already.
        """
        used = self._used_bytes
        if self._waiting or (used and used + size_bytes > self.limit_bytes):
            raise busy(
                f"limit of {self.limit_bytes:,} bytes of {self._what} under way on this node is "
                "reached: retry with backoff"
            )
        self._used_bytes = used + size_bytes
        try:
            yield
        finally:
            self.give_back(size_bytes)

    async def take(self, size_bytes: int) -> None:
        """Take, after those that waited before."""
        if not self._waiting and self._fits(size_bytes):
            self._used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size_bytes)
            else:
                self._serve()
            raise

    def give_back(self, size_bytes: int) -> None:
        """Return what was taken."""
        self._used_bytes -= size_bytes
        assert self._used_bytes >= 0, "more was given back than taken"
        if self._waiting:
            self._serve()

    def _fits(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self.limit_bytes

    def _serve(self) -> None:
        waiting = self._waiting
        while waiting:
            size_bytes, turn = waiting[0]
            if not turn.done():
                if not self._fits(size_bytes):
                    return
                self._used_bytes += size_bytes
                turn.set_result(None)
            waiting.popleft()
