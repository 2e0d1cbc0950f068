"""A call whose status changes, as those of gRPC do when a write fails that was on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import grpc

Status = tuple[grpc.StatusCode, str]
BROKEN: Final[Status] = (grpc.StatusCode.INTERNAL, "Internal error from Core")
ENDED: Final[Status] = (grpc.StatusCode.OK, "")
REFUSED: Final[Status] = (grpc.StatusCode.ABORTED, "the other one goes first")
ORDERS: Final[tuple[tuple[list[Status], list[Status]], ...]] = (
    ([REFUSED, BROKEN], []),
    ([BROKEN, REFUSED], []),
    ([BROKEN], [REFUSED]),
    ([REFUSED], [BROKEN]),
    ([], [BROKEN, REFUSED]),
)
"""What a call is told before and after a write of it fails."""


class BreakingCall:
    """The status of the failed write takes the place of the peer's, or the peer's that of it."""

    def __init__(self, before: list[Status], after: list[Status]) -> None:
        self._before, self._after = before, after
        self._status: Status | None = None
        self._callbacks: list[Callable[[object], None]] = []

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        """Register a callback for the end of the call."""
        self._callbacks.append(callback)

    async def code(self) -> grpc.StatusCode:
        """Return the code of the present status."""
        assert self._status is not None
        return self._status[0]

    async def details(self) -> str:
        """Return the details of the present status."""
        assert self._status is not None
        return self._status[1]

    async def write(self, _: object) -> None:
        """Fail."""
        for status in self._before:
            self._set(status)
        for status in self._after:
            asyncio.get_running_loop().call_soon(self._set, status)
        raise asyncio.InvalidStateError

    def _set(self, status: Status) -> None:
        self._status = status
        for callback in self._callbacks:
            callback(self)
