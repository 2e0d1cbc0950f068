"""The end of endless calls when the node shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from store.serving.failure import unready

_SHUTTING_DOWN: Final = "the node is shutting down: go on at another node, or here later"


class Drain:
    """The calls without an end of their own, which `begin` ends; other calls are left to finish."""

    def __init__(self) -> None:
        self._begun = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def begun(self) -> bool:
        """True from `begin` on."""
        return self._begun

    def begin(self) -> None:
        """End every endless call, those that begin later too."""
        self._begun = True
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def endless(self) -> Iterator[None]:
        """Let the block, which waits without a limit, be ended by `begin`.

        Raises:
            CallError: the node is shutting down.
        """
        if self._begun:
            raise unready(_SHUTTING_DOWN)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # The client's own cancellation may come at the same moment; then it counts.
            if self.begun and task.uncancel() == 0:
                raise unready(_SHUTTING_DOWN) from None
            raise
        finally:
            self._tasks.discard(task)
