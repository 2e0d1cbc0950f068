"""A promise: a value that comes later, on the timeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Promise(Generic[_T]):
    """A value that comes later, or a failure; for one task to await."""

    __slots__ = ("_error", "_value", "settled", "waiter")

    def __init__(self) -> None:
        self.settled = False
        self.waiter: Callable[[], None] | None = None
        self._value: Any = None
        self._error: Exception | None = None

    def keep(self, value: _T) -> None:
        """Keep the promise with a value; later calls have no effect."""
        self._settle(value, None)

    def fail(self, error: Exception) -> None:
        """Fail the promise with an error."""
        self._settle(None, error)

    @property
    def value(self) -> _T:
        """The value of a promise that is kept; raises what it failed with."""
        assert self.settled
        if self._error is not None:
            raise self._error
        value: _T = self._value
        return value

    def __await__(self) -> Generator[Any, None, _T]:
        if not self.settled:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            assert self.waiter is None, "two tasks wait for one promise"
            self.waiter = lambda: None if future.done() else future.set_result(None)
            try:
                yield from future
            finally:
                self.waiter = None
        return self.value

    def _settle(self, value: Any, error: Exception | None) -> None:  # noqa: ANN401 - any value
        if self.settled:
            return
        self.settled, self._value, self._error = True, value, error
        if self.waiter is not None:
            self.waiter()
