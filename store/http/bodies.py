"""Bodies of requests as they come in: bounded in size, time and number of bytes together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from store.http.limits import BODY_TIMEOUT_S, MAX_UNFINISHED_BYTES
from store.serving.failure import CallFailure, Code, busy


class Bodies:
    """The bodies that are not complete, and a bound on what has come of all of them.

    Where there is no room for more, the body that has been coming in for the longest time is
    refused: an honest one is complete soon.
    """

    def __init__(self, limit_bytes: int = MAX_UNFINISHED_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._coming: dict[IncomingBody, None] = {}

    @asynccontextmanager
    async def coming(self) -> AsyncIterator[IncomingBody]:
        """Read one body.

        Raises:
            CallFailure: it has not come in time, or it gave way to others.
        """
        body = IncomingBody(self)
        self._coming[body] = None
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S) as body.limit:
                yield body
        except TimeoutError:
            if body in self._coming:
                raise CallFailure(
                    Code.DEADLINE_EXCEEDED,
                    f"the body has not come in full within {BODY_TIMEOUT_S:g} s: send it faster,"
                    " or a smaller one",
                ) from None
            raise self._full() from None
        finally:
            self._remove(body)

    def add(self, body: IncomingBody, size_bytes: int) -> None:
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
        self._remove(oldest)
        if oldest.limit is not None and not oldest.limit.expired():
            oldest.limit.reschedule(asyncio.get_running_loop().time())

    def _remove(self, body: IncomingBody) -> None:
        if body in self._coming:
            del self._coming[body]
            self._used_bytes -= body.size_bytes

    def _full(self) -> CallFailure:
        return busy(
            f"limit of {self._limit_bytes:,} bytes of requests that have not come in full is"
            " reached on this node: retry with backoff, or send smaller requests"
        )


@dataclass(slots=True, eq=False)
class IncomingBody:
    """A body that is coming in."""

    bodies: Bodies
    size_bytes: int = 0
    limit: asyncio.Timeout | None = None

    def add(self, size_bytes: int) -> None:
        """Count what has come; raises as `Bodies.add`."""
        self.bodies.add(self, size_bytes)
