"""Bounds on the memory of requests that have not come in full.

gRPC holds what has come of a message until it is whole, and learns its size only then. Before a
message is read, HTTP/2's flow control leaves all but `LOOKAHEAD_BYTES` of it with the sender: to
read is to allow a request of the largest size. Two rules bound it:

1. The one request of a call is read in one of few slots (`RequestSlots`).
2. A stream may be silent for hours before its next request, which has no deadline and no slot.
   `IncompleteRequests` measures the bytes that gRPC holds: the kernel counts what has come over a
   connection, and the requests that were read are known. The rest is what gRPC holds, and headers
   and frames of HTTP/2 and TLS. These add up, so a connection is measured from the least rest that
   it had, and anew when all that is awaited was begun lately. Where all connections together hold
   more than a budget, calls are ended: first those of the caller with the most bytes, of these
   first on connections with many bytes over which nothing comes any more. A stream that was silent
   and shares its connection with much traffic may be among them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from store.rpc.listeners import LOOKAHEAD_BYTES, MAX_PEER_FRAME_BYTES
from store.serving.connections import ReceivedBytes
from store.serving.drain import Endable
from store.serving.failure import unready

if TYPE_CHECKING:
    from store.rpc.call import RpcCall

MAX_UNFINISHED_BYTES: Final = 128 * 1024 * 1024
"""Bytes that gRPC may hold of all requests; the next request of a stream needs no slot."""

FORGET_BEYOND: Final = 1_024
"""Connections that are remembered before the closed ones are looked for."""

LARGE_BYTES: Final = 1024 * 1024
"""A caller with fewer bytes is ended last."""

PAUSE_S: Final = 0.1
PAUSE_ROUNDS: Final = 10
"""Between two measurements: so long, or so many times the duration of the last one."""

MAX_PAUSE_S: Final = 0.5
"""The pause while no read begins and nothing comes over connections that await a request, such as
the streams of peers."""

FILLING_PAUSE_S: Final = 0.01
FILLING_SHARE: Final = 8
"""The pause while connections that grow hold this share of the budget."""


@dataclass(slots=True)
class MeasuredConnection:
    """The bytes of a connection.

    ``read_bytes``: of all requests that were read. ``awaited``: the task of each call that awaits a
    request, with the round in which it began. ``came_bytes``: all that had come in the last round.
    ``rest_bytes``: the least that had come and was not read. ``unread_bytes``: at most so much is
    in gRPC. ``grew``: since the round before.
    """

    name: str
    owner: str = ""
    read_bytes: int = 0
    came_bytes: int = 0
    rest_bytes: int = 0
    unread_bytes: int = 0
    grew: bool = False
    awaited: dict[Endable, int] = field(default_factory=dict)

    def measure(self, came_bytes: int, last_round: int) -> None:
        """Compute what is in gRPC, now that so much has come."""
        rest, most = came_bytes - self.read_bytes, len(self.awaited) * MAX_PEER_FRAME_BYTES
        since = came_bytes - self.came_bytes
        self.rest_bytes = min(self.rest_bytes, rest)
        if all(begun >= last_round for begun in self.awaited.values()):
            ahead = len(self.awaited) * LOOKAHEAD_BYTES
            self.rest_bytes = max(self.rest_bytes, rest - since - ahead)
        self.unread_bytes = min(rest - self.rest_bytes, most)
        self.grew, self.came_bytes = since > 0, came_bytes

    def end(self, sentence: str) -> None:
        """End every call whose request is awaited; its bytes are given up with it."""
        self.rest_bytes = self.came_bytes - self.read_bytes
        while self.awaited:
            self.awaited.popitem()[0].end(unready(sentence))


class IncompleteRequests:
    """The budget of bytes that gRPC holds of requests, which `run` keeps to."""

    def __init__(
        self,
        limit_bytes: int = MAX_UNFINISHED_BYTES,
        count: Callable[[Iterable[str]], Awaitable[dict[str, int]]] | None = None,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._count = count or ReceivedBytes().count
        self._connections: dict[str, MeasuredConnection] = {}
        self._forget_at = FORGET_BEYOND
        self._round = self._awaited = 0
        self._is_filling = self._has_grown = False
        self._active = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None

    async def read(self, call: RpcCall, owner: str, block: Endable) -> bytes | None:
        """Read the next request of a call of ``owner`` in a block; return None after the last.

        The block ends with a `CallError` if the request gives way to others before it has come.
        """
        connection = self._connections.get(call.connection)
        if connection is None:
            connection = self._connections[call.connection] = MeasuredConnection(call.connection)
        connection.owner = owner
        connection.awaited[block] = self._round
        self._awaited += 1
        # Most requests are there already: they need not be measured.
        if self._alarm is None or self._alarm.cancelled():
            self._alarm = asyncio.get_running_loop().call_later(PAUSE_S, self._wake)
        try:
            request: object = await call.context.read()
        finally:
            self._awaited -= 1
            connection.awaited.pop(block, None)
            if not self._awaited and self._alarm is not None:
                self._alarm.cancel()
        if not isinstance(request, bytes):
            return None
        connection.read_bytes += len(request)
        return request

    def _wake(self) -> None:
        self._alarm = None
        self._active.set()

    async def run(self) -> None:
        """Measure again and again while requests are awaited, seldom while nothing comes."""
        loop, pause_s, least_s = asyncio.get_running_loop(), PAUSE_S, PAUSE_S
        while True:
            if not self._is_filling:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s if self._awaited else None):
                        await self._active.wait()
            begun = self._active.is_set()
            self._active.clear()
            await asyncio.sleep(FILLING_PAUSE_S if self._is_filling else least_s - PAUSE_S)
            began_s = loop.time()
            await self.measure()
            pause_s = PAUSE_S if begun or self._has_grown else MAX_PAUSE_S
            least_s = max(PAUSE_S, (loop.time() - began_s) * PAUSE_ROUNDS)

    async def measure(self) -> None:
        """Measure, and end calls where there are too many bytes."""
        if len(self._connections) > self._forget_at:
            await self._forget_closed()
        last, self._round = self._round, self._round + 1
        self._is_filling = self._has_grown = False
        if not self._awaited:
            return
        waiting = [each for each in self._connections.values() if each.awaited]
        came = await self._count([each.name for each in waiting])
        waiting = [each for each in waiting if each.awaited]
        for each in waiting:
            if each.name in came:
                each.measure(came[each.name], last)
        growing = [each.unread_bytes for each in waiting if each.grew]
        self._is_filling = sum(growing) > self._limit_bytes // FILLING_SHARE
        self._has_grown = bool(growing)
        self._end_excess(waiting)

    async def _forget_closed(self) -> None:
        names = list(self._connections)
        still_open = await self._count(names)
        for name in names:
            if name not in still_open and not self._connections[name].awaited:
                del self._connections[name]
        self._forget_at = max(FORGET_BEYOND, 2 * len(self._connections))

    def _end_excess(self, waiting: list[MeasuredConnection]) -> None:
        excess = sum(each.unread_bytes for each in waiting) - self._limit_bytes
        if excess <= 0:
            return
        owners: Counter[str] = Counter()
        for each in waiting:
            owners[each.owner] += each.unread_bytes
        waiting.sort(
            key=lambda each: (
                *(-owners[each.owner], each.unread_bytes < LARGE_BYTES),
                *(each.grew, -each.unread_bytes),
            )
        )
        for each in waiting:
            if excess > 0 and each.unread_bytes:
                excess -= each.unread_bytes
                each.end(
                    f"requests that have not come in full hold more than {self._limit_bytes:,}"
                    " bytes of this node, and that of this call had not come: make the call again,"
                    " and send what has no answer"
                )
