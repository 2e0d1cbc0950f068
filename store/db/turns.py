"""Fair turns of callers where few calls may work at one time.

Callers take turns, and within a caller its connections do: a caller with many calls delays only
itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from store.domain.ports import StoreBusy

_Waiting = deque[asyncio.Future[None]]


class Turns:
    """``places`` calls work at one time, ``of_caller`` of one caller at most; others wait.

    ``what`` names them in errors. At most ``most_waiting`` wait, half as many of one caller.
    """

    def __init__(self, what: str, *, places: int, of_caller: int, most_waiting: int) -> None:
        self._what = what
        self._places = places
        self._of_caller = of_caller
        self._most_waiting = most_waiting
        self._working: Counter[str] = Counter()
        # By caller and connection; the first of each is the next.
        self._waiting: dict[str, dict[str, _Waiting]] = {}
        self._counts: Counter[str] = Counter()  # of those that wait, by caller

    @asynccontextmanager
    async def turn(self, caller: str, connection: str) -> AsyncIterator[None]:
        """Wait for the call's turn, and hold it in the block.

        Raises:
            StoreBusy: too many calls wait already.
        """
        for waiting, most in (
            (self._counts[caller], self._most_waiting // 2),
            (self._counts.total(), self._most_waiting),
        ):
            if waiting >= most:
                raise StoreBusy(f"{most} {self._what} are waiting already; retry with backoff")
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, {}).setdefault(connection, deque()).append(turn)
        self._counts[caller] += 1
        self._serve()
        try:
            await turn
            yield
        finally:
            if turn.cancelled():
                self._forget(caller, connection, turn)
            else:
                self._working[caller] -= 1
                self._working += Counter()  # without those at 0
            self._serve()

    def _serve(self) -> None:
        while (caller := self._next()) is not None:
            connections = self._waiting[caller]
            connection, turns = next(iter(connections.items()))
            turn = turns[0]
            self._forget(caller, connection, turn)
            if turn.done():
                continue  # whose call is being cancelled
            # A caller that was served goes to the end.
            if connection in connections:
                connections[connection] = connections.pop(connection)
            if caller in self._waiting:
                self._waiting[caller] = self._waiting.pop(caller)
            self._working[caller] += 1
            turn.set_result(None)

    def _next(self) -> str | None:
        if self._working.total() >= self._places:
            return None
        allowed = [each for each in self._waiting if self._working[each] < self._of_caller]
        return min(allowed, key=lambda caller: self._working[caller], default=None)

    def _forget(self, caller: str, connection: str, turn: asyncio.Future[None]) -> None:
        connections = self._waiting.get(caller, {})
        if turn not in connections.get(connection, ()):
            return
        connections[connection].remove(turn)
        self._counts[caller] -= 1
        if not connections[connection]:
            del connections[connection]
        if not connections:
            del self._waiting[caller], self._counts[caller]
