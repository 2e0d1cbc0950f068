"""Ends of calls that are not their own, such as those of a node that shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

from store.serving.failure import unready

_SHUTTING_DOWN: Final = "the node is shutting down: go on at another node, or here later"


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
