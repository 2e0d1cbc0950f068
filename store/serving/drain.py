"""Ends of calls that are not their own, such as those of a node that shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from store.serving.failure import unready

_SHUTTING_DOWN: Final = "the node is shutting down: go on at another node, or here later"

End: TypeAlias = Callable[[Exception], None]
"""Ends a block of another task with an error."""


@contextmanager
def endable() -> Iterator[End]:
    """Yield a function that ends the block with the error that it is given."""
    task, reason, is_over = asyncio.current_task(), list[Exception](), False
    assert task is not None

    def end(error: Exception) -> None:
        if not reason and not is_over:
            reason.append(error)
            task.cancel()

    try:
        yield end
    except asyncio.CancelledError:
        # The node's or the caller's own cancellation may come at the same moment; then it counts.
        if not reason or task.uncancel():
            raise
        # Not kept here: the traceback has this frame, and with it the request.
        raise reason.pop() from None
    finally:
        is_over = True


class Drain:
    """The calls without an end of their own, by ``ends``, which `begin` calls."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ends: set[End] = set()

    def begin(self) -> None:
        """End every endless call, those that begin later too."""
        self.begun.set()
        for end in self.ends:
            end(unready(_SHUTTING_DOWN))

    @contextmanager
    def endless(self) -> Iterator[None]:
        """Let the block, which waits without a limit, be ended by `begin`.

        Raises:
            CallError: the node is shutting down.
        """
        if self.begun.is_set():
            raise unready(_SHUTTING_DOWN)
        with endable() as end:
            self.ends.add(end)
            try:
                yield
            finally:
                self.ends.discard(end)
