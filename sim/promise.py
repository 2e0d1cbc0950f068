"""A promise: a value that comes later, on the timeline."""

from __future__ import annotations

import asyncio
from typing import TypeVar

_T = TypeVar("_T")


class Promise(asyncio.Future[_T]):
    """A future that is settled once: later values and errors have no effect."""

    def keep(self, value: _T) -> None:
        """Keep the promise with a value."""
        if not self.done():
            self.set_result(value)

    def fail(self, error: Exception) -> None:
        """Fail the promise with an error, which need not be awaited."""
        if not self.done():
            self.set_exception(error)
            self.exception()
