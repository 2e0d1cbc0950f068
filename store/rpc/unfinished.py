"""A budget of bytes for what callers have sent of requests that have not come in full.

gRPC holds what has come of a request until it is whole, and a stream may be silent for hours
before its next one, which has no deadline and no place (`store.rpc.receiving`). gRPC does not tell
how much it holds. The kernel tells how much has come over a connection; of it the requests that
were read are known. The rest is what gRPC holds, and headers and frames of HTTP/2 and TLS. These
add up, so a connection is measured from the least rest that it had, and anew when all that is
awaited was begun lately.

Where all connections together hold more than the budget, calls are ended: first those of the caller
that holds most, of these first on connections with much over which nothing comes any more. A stream
that was silent and shares its connection with much traffic may be among them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import grpc

from store.rpc.limits import LOOKAHEAD_BYTES, MAX_PEER_FRAME_BYTES, MAX_UNFINISHED_BYTES
from store.serving.failure import CallFailure, Code
from store.serving.sockets import Arrivals

FORGET_BEYOND: Final = 1_024
"""Connections that are remembered before the closed ones are looked for."""


LARGE_BYTES: Final = 1024 * 1024
"""Who holds less is ended last."""

PAUSE_S: Final = 0.1
PAUSE_LOOKS: Final = 10
"""Between two looks: so long, or so many times what the last one took."""


@dataclass(slots=True)
class Connection:
    """``read_bytes``: of all requests that were read. ``awaited``: since which look.

    ``came_bytes``: all that had come at the last look. ``rest_bytes``: the least that had come and
    was not read. ``held_bytes``: at most so much is held. ``grew``: since the look before.
    """

    name: str
    owner: str = ""
    read_bytes: int = 0
    came_bytes: int = 0
    rest_bytes: int = 0
    held_bytes: int = 0
    grew: bool = False
    awaited: dict[asyncio.Timeout, int] = field(default_factory=dict)

    def look(self, came_bytes: int, last_look: int) -> None:
        """Work out what is held, now that so much has come."""
        rest, most = came_bytes - self.read_bytes, len(self.awaited) * MAX_PEER_FRAME_BYTES
        since = came_bytes - self.came_bytes
        self.rest_bytes = min(self.rest_bytes, rest)
        if all(begun >= last_look for begun in self.awaited.values()):
            ahead = len(self.awaited) * LOOKAHEAD_BYTES
            self.rest_bytes = max(self.rest_bytes, rest - since - ahead)
        self.held_bytes = min(rest - self.rest_bytes, most)
        self.grew, self.came_bytes = since > 0, came_bytes

    @property
    def rank(self) -> tuple[bool, bool]:
        """Of one caller the least goes first."""
        return self.held_bytes < LARGE_BYTES, self.grew

    def end(self, now_s: float) -> None:
        """End every call whose request is awaited; what is held is given up with them."""
        self.rest_bytes = self.came_bytes - self.read_bytes
        for limit in self.awaited:
            if not limit.expired():
                limit.reschedule(now_s)


class Unfinished:
    """The budget, which `run` keeps to."""

    def __init__(
        self,
        limit_bytes: int = MAX_UNFINISHED_BYTES,
        count: Callable[[Iterable[str]], dict[str, int]] | None = None,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._count = count or Arrivals().count
        self._connections: dict[str, Connection] = {}
        self._forget_at = FORGET_BEYOND
        self._looks = 0

    @property
    def held_bytes(self) -> int:
        """What all connections held when it was last looked."""
        return sum(each.held_bytes for each in self._connections.values() if each.awaited)

    async def next(
        self, context: grpc.aio.ServicerContext[bytes, bytes], owner: str
    ) -> bytes | None:
        """Read the next request of a stream; None after the last.

        ``owner``: whose stream it is.

        Raises:
            CallFailure: it gave way to others before its request had come in full.
        """
        async with self.awaiting(context.peer(), owner) as connection:
            request: object = await context.read()
            if not isinstance(request, bytes):
                return None
            connection.read_bytes += len(request)
            return request

    @asynccontextmanager
    async def awaiting(self, name: str, owner: str) -> AsyncIterator[Connection]:
        """Await a request that comes over a connection, to which its size is to be added.

        Raises:
            CallFailure: it gave way to others.
        """
        connection = self._connections.get(name)
        if connection is None:
            connection = self._connections[name] = Connection(name)
        connection.owner = owner
        try:
            async with asyncio.timeout(None) as limit:
                connection.awaited[limit] = self._looks
                try:
                    yield connection
                finally:
                    del connection.awaited[limit]
        except TimeoutError:
            raise self._gave_way() from None

    async def run(self) -> None:
        """Look again and again, for a small part of the time."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await self.look()
            await asyncio.sleep(max(PAUSE_S, (loop.time() - began_s) * PAUSE_LOOKS))

    async def look(self) -> None:
        """Measure beside the event loop, and end calls where too much is held."""
        waiting = [each for each in self._connections.values() if each.awaited]
        if not waiting:
            return
        last, self._looks = self._looks, self._looks + 1
        if len(self._connections) > self._forget_at:
            names = list(self._connections)
            self._forget(names, await asyncio.to_thread(self._count, names))
        came = await asyncio.to_thread(self._count, [each.name for each in waiting])
        for each in waiting:
            if each.name in came and each.awaited:
                each.look(came[each.name], last)
        self._keep_to_it([each for each in waiting if each.awaited])

    def _forget(self, names: Iterable[str], still_open: dict[str, int]) -> None:
        for name in names:
            if name not in still_open and not self._connections[name].awaited:
                del self._connections[name]
        self._forget_at = max(FORGET_BEYOND, 2 * len(self._connections))

    def _keep_to_it(self, waiting: list[Connection]) -> None:
        excess = sum(each.held_bytes for each in waiting) - self._limit_bytes
        if excess <= 0:
            return
        owners: Counter[str] = Counter()
        for each in waiting:
            owners[each.owner] += each.held_bytes
        now_s = asyncio.get_running_loop().time()
        waiting.sort(key=lambda each: (-owners[each.owner], each.rank, -each.held_bytes))
        for each in waiting:
            if excess <= 0:
                return
            excess -= each.held_bytes
            if each.held_bytes:
                each.end(now_s)

    def _gave_way(self) -> CallFailure:
        return CallFailure(
            Code.UNAVAILABLE,
            f"requests that have not come in full hold more than {self._limit_bytes:,} bytes of "
            "this node, and that of this call had not come: make the call again, and send what has "
            "no answer",
            retry=True,
        )
