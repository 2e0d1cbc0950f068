"""Tasks with one owner, waits that end by what is counted, and polling."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

PATIENCE_S: Final = 120.0
PAUSE_S: Final = 0.03
"""Time between two looks: without it they take the processor from what is waited for."""

_LOOK_EVERY_S: Final = 0.1
_T = TypeVar("_T")


def eventually(look: Callable[[], _T | None]) -> _T:
    """Ask a process or a database until the answer is true, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(PAUSE_S)
    return found


class Tasks:
    """Tasks of one owner; ``failure`` raises what the first failed one has raised."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    async def stop(self) -> None:
        """Cancel all running tasks, and wait for them."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.failure.done():
            self.failure.cancel()

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failure.done():
            self.failure.set_exception(error)
            # Mark it as retrieved: an owner may end without waiting for it.
            self.failure.exception()


class StuckError(Exception):
    """A wait was given up; the text says what is left."""


class OutOfTimeError(StuckError):
    """A wait was given up since the time limit of the run was reached."""


class Waiter:
    """Waits until counts are zero.

    A wait is given up when its count has not changed for ``patience_s``, or ``limit_s`` after the
    waiter was made.
    """

    def __init__(self, patience_s: float, limit_s: float = math.inf) -> None:
        self._patience_s = patience_s
        self._end_s = time.monotonic() + limit_s

    @property
    def left_s(self) -> float:
        """The time until the limit."""
        return max(self._end_s - time.monotonic(), 0.0)

    async def until_none(self, what: str, count: Callable[[], int]) -> None:
        """Wait until nothing is left of what is counted.

        Raises:
            StuckError: The wait was given up.
        """
        last, changed_s = count(), time.monotonic()
        while last:
            now_s = time.monotonic()
            if now_s - changed_s > self._patience_s:
                raise StuckError(
                    f"{what}: {last:,} left, and no change for {self._patience_s:.0f} s"
                )
            if not self.left_s:
                raise OutOfTimeError(f"{what}: {last:,} left when the time limit was reached")
            await asyncio.sleep(_LOOK_EVERY_S)
            if (left := count()) != last:
                last, changed_s = left, time.monotonic()
