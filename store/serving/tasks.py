"""Background tasks of a node or a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from store.observe.logging import get_logger
from storenode.common.backoff import Backoff

_LOG = get_logger("store.serving.tasks")

TASK_RETRY_FIRST_S: Final = 1.0
TASK_RETRY_MOST_S: Final = 60.0
"""Pauses before a background task that failed is started again."""

TASK_CANCEL_AGAIN_S: Final = 1.0
"""The time after which a cancelled background task is cancelled again."""

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
        self._tasks.append(asyncio.create_task(_keep_doing(name, work), name=name))

    def start_every(self, interval_s: float, name: str, work: Callable[[], object]) -> None:
        """Start `work` now, and again after each interval, until `stop` is called.

        Intervals end at multiples of them, so that an idle node wakes for many works at the same
        time.
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
        left = set(self._tasks)
        while left:
            # Again and again: a cancellation that meets the end of a wait may get lost in it.
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=TASK_CANCEL_AGAIN_S)
        self._tasks.clear()


async def _keep_doing(name: str, work: Work) -> None:
    backoff = Backoff(TASK_RETRY_FIRST_S, TASK_RETRY_MOST_S)
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - whatever it is, the task continues
            _LOG.exception("task_failed", task=name, retry_in_s=backoff.pause_s)
        await asyncio.sleep(backoff.take())
