"""Places for requests that have not come in full, so that their bytes in memory are bounded.

gRPC holds what has come of a message until it is whole, and learns its size only then. Before a
message is read, HTTP/2's flow control leaves all but `LOOKAHEAD_BYTES` of it with the sender: to
read is to allow a request of the largest size. So a call shows who makes it first, then takes one
of few places, and reads. A small request is there at once and needs its place for a moment.

Those that wait are served in turn, one per connection and round. While somebody waits, a place is
kept for `CROWDED_TIMEOUT_S` only. Of too many that wait, one of the connection with the most is
refused.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Final

import grpc

from store.rpc.limits import (
    CROWDED_TIMEOUT_S,
    MAX_UNFINISHED_REQUESTS,
    MAX_WAITING_REQUESTS,
    REQUEST_TIMEOUT_S,
)
from store.serving.failure import CallFailure, Code

_SHORT: Final = f"{CROWDED_TIMEOUT_S:g} s"


class NoRequest(CallFailure):
    """The caller has hung up, or closed its side, before it sent a request."""

    def __init__(self) -> None:
        super().__init__(Code.INVALID_ARGUMENT, "the call ended before its request: send one")


class Receiving:
    """The places; one instance bounds the requests of all who share it."""

    def __init__(self, places: int = MAX_UNFINISHED_REQUESTS) -> None:
        self._free = places
        self._unhurried: dict[asyncio.Timeout, float] = {}
        self._queued = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def request(
        self, context: grpc.aio.ServicerContext[bytes, bytes], *, wait: bool = True
    ) -> bytes:
        """Read the one request of a call; without ``wait`` only where a place is free.

        Raises:
            CallFailure: It has not come in time, or there is none.
        """
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S) as limit:
                if self._free:
                    self._free -= 1
                elif wait:
                    await self._turn(context.peer())
                else:
                    raise _crowded()
                try:
                    now_s = asyncio.get_running_loop().time()
                    if self._waiting or not wait:
                        _shorten(limit, now_s)
                    else:
                        self._unhurried[limit] = now_s
                    request: object = await context.read()
                finally:
                    self._unhurried.pop(limit, None)
                    self._free += 1
                    if self._waiting:
                        self._serve()
        except TimeoutError:
            raise _late(asyncio.get_running_loop().time() - began_s) from None
        if not isinstance(request, bytes):
            raise NoRequest
        return request

    async def _turn(self, connection: str) -> None:
        """Wait for a place, which the one who leaves hands over."""
        if self._queued >= MAX_WAITING_REQUESTS:
            self._refuse_one()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(connection, deque()).append(turn)
        for limit, began_s in self._unhurried.items():
            _shorten(limit, began_s)
        self._unhurried.clear()
        self._queued += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._free += 1
                self._serve()
            raise
        finally:
            self._queued -= 1

    def _refuse_one(self) -> None:
        waiting = self._waiting
        while waiting:
            connection = max(waiting, key=lambda each: len(waiting[each]))
            turn = waiting[connection].pop()
            if not waiting[connection]:
                del waiting[connection]
            if not turn.done():
                turn.set_exception(_crowded())
                return

    def _serve(self) -> None:
        """Hand free places to the next connections in turn."""
        waiting = self._waiting
        while self._free and waiting:
            connection, turns = waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                waiting[connection] = turns
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


def _shorten(limit: asyncio.Timeout, began_s: float) -> None:
    # One that runs out at this moment cannot be changed any more.
    if not limit.expired():
        end_s = limit.when()
        assert end_s is not None
        limit.reschedule(min(end_s, began_s + CROWDED_TIMEOUT_S))


def _late(seconds: float) -> CallFailure:
    if seconds < REQUEST_TIMEOUT_S:
        return _crowded()
    return CallFailure(
        Code.DEADLINE_EXCEEDED,
        f"the request has not come in full within {REQUEST_TIMEOUT_S:g} s: send it faster, or a "
        "smaller one",
    )


def _crowded() -> CallFailure:
    return CallFailure(
        Code.RESOURCE_EXHAUSTED,
        "limit of requests that have not come in full is reached on this node, which gives each "
        f"{_SHORT} then: retry with backoff, or send smaller requests",
        retry=True,
    )
