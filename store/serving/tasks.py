"""Background tasks of a node or a gateway, and ends of calls that are not their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from store.observe.logging import get_logger
from store.serving.failure import unready
from storenode.common.backoff import Backoff

_LOG = get_logger("store.serving.tasks")

TASK_RETRY_FIRST_S: Final = 1.0
TASK_RETRY_MOST_S: Final = 60.0
"""Pauses before a background task that failed is started again."""

TASK_CANCEL_AGAIN_S: Final = 1.0
"""The time after which a cancelled background task is cancelled again."""

_SHUTTING_DOWN: Final = "the node is shutting down: go on at another node, or here later"

Work = Callable[[], Awaitable[None]]
"""Work that does not end by itself."""


class BackgroundTasks:
    """Starts tasks, and stops them together.

    One that fails is a fault of ours. It is logged and started again: calls can be served
    meanwhile, and ending the node would end them.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Work) -> None:
        """Start `work`, which does not end by itself, until `stop` is called."""
        self._tasks.append(asyncio.create_task(keep_doing(name, work), name=name))

    def start_every(self, interval_s: float, name: str, work: Callable[[], object]) -> None:
        """Start `work` now, and again after each interval, until `stop` is called.

        Intervals end at multiples of them: an idle node wakes once for many works.
        """
        clock = asyncio.get_running_loop().time

        async def repeat() -> None:
            while True:
                done = work()
                if isinstance(done, Awaitable):
                    await done
                await asyncio.sleep(interval_s - clock() % interval_s)

        self.start(name, repeat)

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end."""
        await cancel(self._tasks)
        self._tasks.clear()


async def cancel(tasks: Iterable[asyncio.Future[None]]) -> None:
    """Cancel tasks again and again until they have ended.

    A cancellation that meets the end of a wait may get lost in it; one that ends a wait for the
    database waits for that itself.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=TASK_CANCEL_AGAIN_S)


async def keep_doing(name: str, work: Work) -> None:
    """Run work that does not end by itself; log its failure, and run it again after a pause."""
    backoff = Backoff(TASK_RETRY_FIRST_S, TASK_RETRY_MOST_S)
    clock = asyncio.get_running_loop().time
    while True:
        begun_s = clock()
        try:
            await work()
        except Exception:  # noqa: BLE001 - whatever it is, the task continues
            if clock() - begun_s > TASK_RETRY_MOST_S:
                backoff.reset()
            _LOG.exception("task_failed", task=name, retry_in_s=backoff.pause_s)
        await asyncio.sleep(backoff.take())


class Endable:
    """A block of a task that others can end with an error.

    The task's own cancellation may come at the same moment; then it counts.
    """

    __slots__ = ("_error", "_is_over", "_task")

    def __enter__(self) -> Self:
        """Begin the block."""
        task = asyncio.current_task()
        assert task is not None
        self._task, self._is_over = task, False
        self._error: Exception | None = None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Raise the error that the block was ended with."""
        # Not kept here: the traceback has this frame, and with it the request.
        self._is_over, error, self._error = True, self._error, None
        if error is not None and kind is asyncio.CancelledError and not self._task.uncancel():
            raise error from None

    def end(self, error: Exception) -> None:
        """End the block, unless it is over or was ended before."""
        if not self._is_over and self._error is None:
            self._error = error
            self._task.cancel()


class Drain:
    """The calls without an end of their own, which `begin` ends."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.blocks: set[Endable] = set()

    def begin(self) -> None:
        """End every endless call, those that begin later too."""
        self.begun.set()
        for block in self.blocks:
            block.end(unready(_SHUTTING_DOWN))

    @contextmanager
    def endless(self) -> Iterator[None]:
        """Let the block, which waits without a limit, be ended by `begin`.

        Raises:
            CallError: the node is shutting down.
        """
        if self.begun.is_set():
            raise unready(_SHUTTING_DOWN)
        with Endable() as block:
            self.blocks.add(block)
            try:
                yield
            finally:
                self.blocks.discard(block)
