"""The status of a call, as the callee gave it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import grpc

STATUS_TIMEOUT_S: Final = 1.0
"""The time to wait for a call's status after a failed write, which may precede it."""

BROKEN_WRITE: Final = (grpc.StatusCode.INTERNAL, "Internal error from Core")
"""The status that gRPC gives a call whose message could not be sent."""

_T = TypeVar("_T")


class Ending:
    """The status of a call; made before anything is written into it.

    gRPC forgets the status that the callee gave when a write fails that was on its way: the status
    of the failed write then takes its place, be it before the callee's or after.
    """

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - grpc.aio's, untyped
        self._known = asyncio.Event()
        self._status: tuple[grpc.StatusCode, str | None] | None = None
        call.add_done_callback(self._learn)

    async def status(self) -> tuple[grpc.StatusCode, str | None]:
        """Return the callee's status and sentence; if none come in time, those of a failed write.

        For a call that has ended, or of which a write has failed, which may be reported before the
        reason of its end.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                await self._known.wait()
        return self._status or BROKEN_WRITE

    async def failure(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError | None:
        """Return the failure of a call that raised an error; None: the callee ended it with OK."""
        status = await self.status()
        if status in (BROKEN_WRITE, (error.code(), error.details())):
            return error
        if status[0] is grpc.StatusCode.OK:
            return None
        nothing = grpc.aio.Metadata()
        return grpc.aio.AioRpcError(status[0], nothing, nothing, status[1], None)

    def _learn(self, call: Any) -> None:  # noqa: ANN401 - grpc.aio's, untyped
        """Take in a status, as often as gRPC gives the call one."""
        status = _at_once(call.code()), _at_once(call.details())
        if status != BROKEN_WRITE:
            self._status = self._status or status
            self._known.set()


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel what writes into a call, and wait for its end; raise its failure.

    Unlike an ``await`` of the task between ``suppress``, it leaves the caller's own cancellation
    alone, which may come meanwhile.
    """
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def _at_once(known: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of a coroutine that has nothing to wait for."""
    try:
        known.send(None)
    except StopIteration as answer:
        value: _T = answer.value
        return value
    raise AssertionError(f"{known} waits")
