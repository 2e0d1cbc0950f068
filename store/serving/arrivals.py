"""Bounds on the memory of requests that have not come in full.

`Arrivals.receive` awaits a request, and can be ended. HTTP counts the bytes of a body as they come.
gRPC holds what has come of a message until it is whole, and learns its size only
then. Before a message is read, HTTP/2's flow control leaves all but `LOOKAHEAD_BYTES` of it with
the sender: to read is to allow a request of the largest size. What gRPC holds is measured: the
kernel counts what has come over a connection, and the requests that were read are known. The rest
is what gRPC holds, and headers and frames of HTTP/2 and TLS. These add up, so a connection is
measured from the least rest that it had, and again when all that is awaited was begun lately.

Rules:

1. The first request of a call has `REQUEST_TIMEOUT_S`. A stream may be silent before its next one.
2. All connections together hold `MAX_INCOMPLETE_BYTES`, and `MAX_STRANGER_BYTES` those that made no
   call which needs a right. A call whose first request does not come counts `SILENT_BYTES`.
3. Beyond this `Arrivals.run` ends calls: those of strangers first, then those of the caller with
   the most bytes, of these first on connections with many bytes over which nothing comes any more.
   A stream that was silent and shares its connection with much traffic may be among them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeVar

from store.serving.failure import CallError, Code, unready
from store.serving.sockets import Connection, ReceivedBytes
from store.serving.tasks import Endable
from storenode.message.limits import MAX_PEER_REQUEST_BYTES

_T = TypeVar("_T")

MAX_INCOMPLETE_BYTES: Final = 128 * 1024 * 1024
MAX_STRANGER_BYTES: Final = 16 * 1024 * 1024
"""Bytes of requests that have not come in full, of all callers, and of those of health checks."""

COUNTED: Final = 0
"""A value in place of a listener's port: the edge counts what comes of a request."""

SILENT_BYTES: Final = 64 * 1024
"""The cost of a call whose first request is awaited: 2,048 of them may be."""

REQUEST_TIMEOUT_S: Final = 60.0
"""The time that the first request of a call may take to arrive in full."""

LOOKAHEAD_BYTES: Final = 128 * 1024
"""Bytes that a caller may send of a message before it is read. A stream of smaller requests is no
faster than this in each round trip."""

MAX_PEER_FRAME_BYTES: Final = MAX_PEER_REQUEST_BYTES + 64 * 1024
"""A payload of the largest size, and the other fields of its frame."""

FORGET_BEYOND: Final = 1_024
"""Connections that are remembered before the closed ones are looked for."""

LARGE_BYTES: Final = 1024 * 1024
"""A connection with fewer bytes is ended after the others of its caller."""

PAUSE_S: Final = 0.1
PAUSE_ROUNDS: Final = 10
"""The pause between two measurements, as a multiple of the duration of the last one."""

MAX_PAUSE_S: Final = 0.5
MAX_PEERS_PAUSE_S: Final = 5.0
"""The pause while no read begins and nothing comes over connections that await a request: of any
caller, and of peers alone, whose streams are silent for hours."""

FILLING_PAUSE_S: Final = 0.01
FILLING_SHARE: Final = 8
"""The pause while connections that grow hold this share of the budget, and before the requests of
strangers are measured."""


@dataclass(slots=True, eq=False)
class ArrivingRequests:
    """The bytes of a connection.

    ``read_bytes``: of all requests that were read. ``came_bytes``: all that had come in the last
    round. ``rest_bytes``: the least that had come and was not read. ``unread_bytes``: at most so
    much is in memory. ``grew``: since the round before.
    """

    name: Connection
    owner: str = ""
    is_stranger: bool = True
    read_bytes: int = 0
    came_bytes: int = 0
    rest_bytes: int = 0
    unread_bytes: int = 0
    grew: bool = False
    awaited: set[AwaitedRequest] = field(default_factory=set)

    def measure(self, came_bytes: int, last_round: int) -> None:
        """Compute what is in memory, now that so much has come."""
        rest, most = came_bytes - self.read_bytes, len(self.awaited) * MAX_PEER_FRAME_BYTES
        since = came_bytes - self.came_bytes
        self.rest_bytes = min(self.rest_bytes, rest)
        if all(each.begun >= last_round for each in self.awaited):
            ahead = len(self.awaited) * LOOKAHEAD_BYTES
            self.rest_bytes = max(self.rest_bytes, rest - since - ahead)
        self.unread_bytes = min(rest - self.rest_bytes, most)
        self.grew, self.came_bytes = since > 0, came_bytes

    def usage(self, last_round: int) -> int:
        """Return the bytes that count: those of calls that are silent since a round, too."""
        silent = sum(each.late_s < inf and each.begun < last_round for each in self.awaited)
        return self.unread_bytes + silent * SILENT_BYTES

    def end_late(self, now_s: float) -> None:
        """End the calls whose first request has not come in time."""
        for each in self.awaited:
            if each.late_s <= now_s:
                sentence = (
                    f"the request has not come in full within {REQUEST_TIMEOUT_S:g} s: send it"
                )
                each.end(CallError(Code.DEADLINE_EXCEEDED, f"{sentence} faster, or a smaller one"))

    def end(self, sentence: str) -> None:
        """End every call whose request is awaited; its bytes are given up with it."""
        self.rest_bytes = self.came_bytes - self.read_bytes
        while self.awaited:
            self.awaited.pop().end(unready(sentence))


class AwaitedRequest(Endable):
    """A block that awaits a request since round ``begun``; a first one is late at ``late_s``."""

    __slots__ = ("begun", "connection", "late_s")

    connection: ArrivingRequests
    begun: int
    late_s: float


class Arrivals:
    """The requests of all callers that are awaited, and their bounds, which `run` keeps to.

    ``round``: the number of measurements. ``counted_bytes``: of all that the edge counts.
    """

    def __init__(
        self,
        limit_bytes: int = MAX_INCOMPLETE_BYTES,
        count: Callable[[Iterable[Connection]], Awaitable[dict[Connection, int]]] | None = None,
    ) -> None:
        self.connections: dict[Connection, ArrivingRequests] = {}
        self.awaited = self.awaited_of_peers = self.round = self.counted_bytes = 0
        self.alarm: asyncio.TimerHandle | None = None
        self.limit_bytes = limit_bytes
        self._count = count or ReceivedBytes().count
        self._forget_at = FORGET_BEYOND
        self._active = asyncio.Event()

    async def receive(
        self,
        read: Callable[[AwaitedRequest], Awaitable[_T]],
        name: Connection,
        owner: str,
        *,
        is_first: bool = True,
        is_stranger: bool = False,
        is_peer: bool = False,
    ) -> _T:
        """Await a request of a connection, whose caller is ``owner``.

        ``is_first``: of a call, and may be late. With `COUNTED` in place of a port ``read`` calls
        `came`; the name is the request's own then.

        Raises:
            CallError: it is late, or gave way to others.
        """
        connection = self.connections.get(name)
        if connection is None:
            connection = self.connections[name] = ArrivingRequests(name)
        connection.owner = owner
        connection.is_stranger = connection.is_stranger and is_stranger
        loop = asyncio.get_running_loop()
        awaited = AwaitedRequest()
        awaited.connection, awaited.begun = connection, self.round
        awaited.late_s = loop.time() + REQUEST_TIMEOUT_S if is_first else inf
        connection.awaited.add(awaited)
        self.awaited += 1
        self.awaited_of_peers += is_peer
        if self.alarm is None:
            # Most requests are there already: they need not be measured.
            pause_s = FILLING_PAUSE_S if connection.is_stranger else PAUSE_S
            self.alarm = loop.call_later(pause_s, self.wake)
        try:
            with awaited:
                request = await read(awaited)
        finally:
            self.awaited -= 1
            self.awaited_of_peers -= is_peer
            connection.awaited.discard(awaited)
            if name[0] == COUNTED:
                self.counted_bytes -= connection.unread_bytes
                self.connections.pop(name, None)
        if isinstance(request, bytes):
            connection.read_bytes += len(request)
        return request

    async def came(self, request: AwaitedRequest, size_bytes: int) -> None:
        """Count a part of a request that has come, and end calls beyond the bounds at once."""
        request.connection.unread_bytes += size_bytes
        self.counted_bytes += size_bytes
        if self.counted_bytes > self.limit_bytes:
            self._keep_bounds(self._waiting(), self.round)
            # Where it is this request that is ended, here, and not after its last part.
            await asyncio.sleep(0)

    def wake(self) -> None:
        """Measure soon, if a request that was awaited is awaited still."""
        self.alarm = None
        if self.awaited:
            self._active.set()

    async def run(self) -> None:
        """Measure again and again while requests are awaited, seldom while nothing comes."""
        loop, pause_s, growing = asyncio.get_running_loop(), 0.0, list[int]()
        while True:
            if not growing:
                of_others = self.awaited - self.awaited_of_peers
                longest_s = MAX_PAUSE_S if of_others else MAX_PEERS_PAUSE_S
                with suppress(TimeoutError):
                    async with asyncio.timeout(longest_s if self.awaited else None):
                        await self._active.wait()
            elif sum(growing) > self.limit_bytes // FILLING_SHARE:
                pause_s = FILLING_PAUSE_S
            else:
                pause_s = max(pause_s, PAUSE_S)
            self._active.clear()
            await asyncio.sleep(pause_s)
            began_s = loop.time()
            growing = await self.measure()
            pause_s = (loop.time() - began_s) * PAUSE_ROUNDS

    async def measure(self) -> list[int]:
        """Measure, end calls beyond the bounds, and return the bytes of connections that grow."""
        if len(self.connections) > self._forget_at:
            await self._forget_closed()
        last, self.round = self.round, self.round + 1
        names = [each.name for each in self._waiting() if each.name[0] != COUNTED]
        came = await self._count(names) if names else {}
        waiting, now_s = self._waiting(), asyncio.get_running_loop().time()
        for each in waiting:
            each.end_late(now_s)
            is_counted = each.name[0] == COUNTED
            if (size := each.unread_bytes if is_counted else came.get(each.name)) is not None:
                each.measure(size, last)
        growing = [each.unread_bytes for each in waiting if each.grew]
        self._keep_bounds(waiting, last)
        return growing

    def _keep_bounds(self, waiting: Sequence[ArrivingRequests], last_round: int) -> None:
        usage = {each: each.usage(last_round) for each in waiting}
        self._end_excess([each for each in waiting if each.is_stranger], usage, MAX_STRANGER_BYTES)
        self._end_excess(waiting, usage, self.limit_bytes)

    def _waiting(self) -> list[ArrivingRequests]:
        return [each for each in self.connections.values() if each.awaited]

    async def _forget_closed(self) -> None:
        names = list(self.connections)
        still_open = await self._count(names)
        for name in names:
            if name not in still_open and not self.connections[name].awaited:
                del self.connections[name]
        self._forget_at = max(FORGET_BEYOND, 2 * len(self.connections))

    def _end_excess(
        self,
        waiting: Sequence[ArrivingRequests],
        usage: dict[ArrivingRequests, int],
        limit_bytes: int,
    ) -> None:
        """End as many calls as hold more than a limit together."""
        excess = sum(usage[each] for each in waiting) - limit_bytes
        if excess <= 0:
            return
        owners: Counter[str] = Counter()
        for each in waiting:
            owners[each.owner] += usage[each]

        def order(each: ArrivingRequests) -> tuple[object, ...]:
            is_small = usage[each] < LARGE_BYTES
            return not each.is_stranger, -owners[each.owner], is_small, each.grew, -usage[each]

        for each in sorted(waiting, key=order):
            if excess > 0 and usage[each]:
                excess -= usage[each]
                usage[each] = 0
                if each.name[0] == COUNTED:
                    self.counted_bytes -= each.unread_bytes
                    each.unread_bytes = 0
                each.end(
                    f"requests that have not come in full hold more than {limit_bytes:,} bytes of"
                    " this node, and that of this call had not come: make the call again, and send"
                    " what has no answer"
                )
