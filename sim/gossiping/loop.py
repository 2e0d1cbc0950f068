"""An asyncio event loop on virtual time: shipped drivers run on it without knowing.

Nothing waits. When no callback is ready, the clock jumps to the next timer; without one, nothing
can ever happen again and `Stalled` is raised. There are no sockets, signals or threads.

A task or timer belongs to the `Life` in whose context it was made: the process that it is a part
of. A life that ends takes them along, as a kill does: its timers no longer fire, its tasks are
cancelled, and what it calls outside is refused (`Life.demand`), so that the ``finally`` of a dead
process has no effect that anybody else could see.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from storenode.message.limits import NS_PER_S

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Stalled(Exception):
    """Every task waits for another; nothing can happen any more."""


class Killed(asyncio.CancelledError):
    """The process that calls is dead."""


class Life:
    """A process of the simulation, from its start to its kill."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = False
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def demand(self) -> None:
        """Raise `Killed` when the process is dead."""
        if self.ended:
            raise Killed(self.name)

    def end(self) -> None:
        """Kill the process."""
        self.ended = True
        for task in list(self.tasks):
            task.cancel()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What is begun in this scope belongs to the process."""
        token = _LIFE.set(self)
        try:
            yield
        finally:
            _LIFE.reset(token)


_LIFE: Final[ContextVar[Life | None]] = ContextVar("life", default=None)


def current_life() -> Life | None:
    """The process in whose context the caller runs."""
    return _LIFE.get()


class _Jump:
    """Stands where a loop has its selector: instead of waiting, the time moves on."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Let the time until the next timer pass."""
        if timeout is None:
            raise Stalled("every task waits for another, and no timer is set")
        self._loop.advance(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """One per run; ``errors``: what tasks and callbacks raised and nobody awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._set_s: dict[float, float] = {}
        self._selector = _Jump(self)
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))
        # The stub of the standard library lacks the keywords that a factory is called with.
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        """Seconds since the run began."""
        return self._now_s

    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        return round(self._now_s * NS_PER_S)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += max(0.0, seconds)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer, which the end of its process disarms."""
        context = copy_context() if context is None else context
        life = context.get(_LIFE)
        when = self._after_others(when)
        if life is None:
            return super().call_at(when, callback, *args, context=context)

        def fire() -> None:
            if not life.ended:
                callback(*args)

        return super().call_at(when, fire, context=context)

    def _after_others(self, when: float) -> float:
        """Timers of one moment fire in the order of their making; a heap of floats keeps none."""
        set_s = self._set_s.get(when)
        self._set_s[when] = when if set_s is None else math.nextafter(set_s, math.inf)
        return self._set_s[when]

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end, then let every other task go.

        Raises:
            Stalled: it waits for what cannot happen.
        """
        asyncio.set_event_loop(self)
        try:
            return self.run_until_complete(main)
        finally:
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.run_until_complete(self.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            self.close()

    # What a loop without sockets and signals must have for its base class.

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none: timers are all that happens."""

    def _write_to_self(self) -> None:
        """No thread ever wakes this loop."""


class _Task(asyncio.Task[_T]):
    """A task whose hash is its number: sets of tasks have the same order in every run."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - those of a task
        self._number = next(self._numbers)
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, _T],
    *,
    name: str | None = None,
    context: Context | None = None,
) -> asyncio.Task[_T]:
    task: _Task[_T] = _Task(coro, loop=loop, name=name, context=context)
    life = (copy_context() if context is None else context).get(_LIFE)
    if life is not None:
        life.tasks[task] = None
        task.add_done_callback(lambda done: life.tasks.pop(done, None))
        if life.ended:
            task.cancel()
    return task
