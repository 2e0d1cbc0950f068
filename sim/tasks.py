"""Work that waits: generators on the timeline, in place of an event loop.

A task is a generator that yields the promises that it waits for. So what drives a machine reads
from top to bottom, as its counterpart on the event loop does, and is still one event at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar

from sim.timeline import Timeline

_T = TypeVar("_T")

Steps: TypeAlias = Generator["Promise[Any]", None, _T]
"""Work with a result, which waits on its way."""


class Cancelled(Exception):
    """Raised inside a task that is to end where it waits."""


class Promise(Generic[_T]):
    """Something that comes later, or fails; for one task to wait for."""

    __slots__ = ("_error", "_value", "settled", "waiter")

    def __init__(self) -> None:
        self.settled = False
        self.waiter: Callable[[], None] | None = None
        self._value: Any = None
        self._error: Exception | None = None

    def keep(self, value: _T) -> None:
        """It has come; what comes later than that counts for nothing."""
        self._settle(value, None)

    def fail(self, error: Exception) -> None:
        """It will not come."""
        self._settle(None, error)

    @property
    def value(self) -> _T:
        """What has come.

        Raises:
            Exception: what it failed with.
        """
        assert self.settled
        if self._error is not None:
            raise self._error
        value: _T = self._value
        return value

    def wait(self) -> Steps[_T]:
        """Wait for it.

        Raises:
            Exception: what it failed with.
        """
        if not self.settled:
            yield self
        return self.value

    def _settle(self, value: Any, error: Exception | None) -> None:  # noqa: ANN401 - any value
        if self.settled:
            return
        self.settled, self._value, self._error = True, value, error
        if self.waiter is not None:
            self.waiter()


def within(timeline: Timeline, promise: Promise[_T], limit_ns: int, error: Exception) -> Steps[_T]:
    """Wait for a promise, which fails with ``error`` when it has not come in time."""
    timer = timeline.after(limit_ns, lambda: promise.fail(error))
    try:
        return (yield from promise.wait())
    finally:
        timer.cancel()


def pause(timeline: Timeline, delay_ns: int) -> Steps[None]:
    """Let time pass."""
    promise: Promise[None] = Promise()
    timer = timeline.after(delay_ns, lambda: promise.keep(None))
    try:
        yield from promise.wait()
    finally:
        timer.cancel()


class Task:
    """Work under way; what it raises, but for `Cancelled`, is raised out of the timeline."""

    __slots__ = ("_ended", "_steps", "_timeline", "_timer", "_waits_for", "name")

    def __init__(
        self,
        timeline: Timeline,
        name: str,
        work: Callable[[Task], Steps[None]],
        ended: Callable[[Task], None],
    ) -> None:
        self.name = name
        self._timeline = timeline
        self._steps: Steps[None] | None = work(self)
        self._ended = ended
        self._waits_for: Promise[Any] | None = None
        self._timer = timeline.soon(lambda: self._go(None))

    def cancel(self, error: Exception | None = None) -> None:
        """End it where it waits, by raising ``error`` there; may come late, or twice."""
        if self._steps is None:
            return
        self._timer.cancel()
        if self._waits_for is not None:
            self._waits_for.waiter = None
        self._go(error or Cancelled())

    def _woken(self) -> None:
        self._timer = self._timeline.soon(lambda: self._go(None))

    def _go(self, error: Exception | None) -> None:
        assert self._steps is not None
        steps, self._waits_for = self._steps, None
        try:
            promise = steps.send(None) if error is None else steps.throw(error)
        except (StopIteration, Cancelled):
            self._end()
        except BaseException:
            self._end()
            raise
        else:
            assert promise.waiter is None, "two tasks wait for one promise"
            self._waits_for, promise.waiter = promise, self._woken

    def _end(self) -> None:
        self._steps = None
        self._ended(self)
