"""Bodies of requests as they come in: bounded in size, time and number of bytes together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from store.http.limits import BODY_TIMEOUT_S, MAX_UNFINISHED_BYTES
from store.serving.failure import CallFailure, Code, busy


class Bodies:
    """What has come of all bodies that are not complete.

    Where there is no room for more, the body that has been coming in for the longest time is
    refused: an honest one is complete soon.
    """

    def __init__(self, limit_bytes: int = MAX_UNFINISHED_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._coming: dict[Body, None] = {}

    @asynccontextmanager
    async def coming(self) -> AsyncIterator[Body]:
        """Around the reading of one body.

        Raises:
            CallFailure: it has not come in time, or gave way to others.
        """
        body: Body | None = None
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S) as limit:
                body = Body(self, limit)
                self._coming[body] = None
                yield body
        except TimeoutError:
            if body is None or not body.gave_way:
                raise CallFailure(
                    Code.DEADLINE_EXCEEDED,
                    f"the body has not come in full within {BODY_TIMEOUT_S:g} s: send it faster,"
                    " or a smaller one",
                ) from None
            raise self._full() from None
        finally:
            if body is not None:
                self._coming.pop(body, None)
                self._used_bytes -= body.size_bytes

    def add(self, body: Body, size_bytes: int) -> None:
        """Count what has come of a body.

        Raises:
            CallFailure: it has been coming in for the longest time, and there is no room.
        """
        body.size_bytes += size_bytes
        self._used_bytes += size_bytes
        if self._used_bytes <= self._limit_bytes:
            return
        oldest = next(iter(self._coming))
        if oldest is body:
            raise self._full()
        del self._coming[oldest]
        self._used_bytes -= oldest.size_bytes
        oldest.give_way()

    def _full(self) -> CallFailure:
        return busy(
            f"limit of {self._limit_bytes:,} bytes of requests that have not come in full is"
            " reached on this node: retry with backoff, or send smaller requests"
        )


class Body:
    """One body that is coming in."""

    def __init__(self, everything: Bodies, limit: asyncio.Timeout) -> None:
        self.size_bytes = 0
        self.gave_way = False
        self._all = everything
        self._limit = limit

    def add(self, size_bytes: int) -> None:
        """Count what has come; raises as `Bodies.add`."""
        self._all.add(self, size_bytes)

    def give_way(self) -> None:
        """End its reading."""
        self.gave_way, self.size_bytes = True, 0
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())
