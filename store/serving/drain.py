"""The end of endless calls when the node shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from store.serving.failure import unready

_SHUTTING_DOWN: Final = "the node is shutting down: go on at another node, or here later"


class Drain:
    """The calls without an end of their own, which `begin` ends, once it has ``begun``."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        """End every endless call, those that begin later too."""
        self.begun.set()
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def endless(self) -> Iterator[None]:
        """Let the block, which waits without a limit, be ended by `begin`.

        Raises:
            CallError: the node is shutting down.
        """
        if self.begun.is_set():
            raise unready(_SHUTTING_DOWN)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # The client's own cancellation may come at the same moment; then it counts.
            if self.begun.is_set() and task.uncancel() == 0:
                raise unready(_SHUTTING_DOWN) from None
            raise
        finally:
            self._tasks.discard(task)
