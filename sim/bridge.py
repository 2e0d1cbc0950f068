"""asyncio on the timeline: shipped drivers run in a simulation without knowing.

`TimelineLoop` is an event loop whose callbacks and timers are events of a `sim.timeline.Timeline`:
callbacks of one moment run in the order of their making, time passes only between events, and there
are no sockets, signals or threads. What would run in a thread runs at once; its result arrives
after a delay that is drawn.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from sim.limits import COLLECT_AFTER_OBJECTS, NS_PER_MS, NS_PER_S
from sim.rng import Random
from sim.timeline import Timeline, Timer

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_LONGEST_THREAD_NS: Final = 20 * NS_PER_MS
_ENDING_EVENTS: Final = 1_000
_ENDING_ROUNDS: Final = 20
"""A task that does not end when it was cancelled so often never will."""


class Life:
    """A process, from its start to its kill: the tasks that were begun in it."""

    def __init__(self) -> None:
        self.ended = False
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def end(self) -> None:
        """Kill it: its timers fire no more, and its tasks are cancelled."""
        self.ended = True
        for task in list(self.tasks):
            task.cancel()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Begin what is begun in this scope in the process."""
        token = _LIFE.set(self)
        try:
            yield
        finally:
            _LIFE.reset(token)


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


_LIFE: Final[ContextVar[Life | None]] = ContextVar("life", default=None)


class _Task(asyncio.Task[_T]):
    """A task whose hash is its number: sets of tasks have the same order in every run."""

    def __init__(self, number: int, *args: Any, **options: Any) -> None:  # noqa: ANN401 - a task's
        self._number = number
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class TimelineLoop(asyncio.AbstractEventLoop):
    """An event loop of one run, which runs while the timeline does, inside `running`."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self._timeline = timeline
        self._rng = rng
        self._began_ns = timeline.now_ns
        self._timers: dict[asyncio.TimerHandle, Timer] = {}
        self._numbers = itertools.count()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._failed: BaseException | None = None
        self._is_ending = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the loop for the length of a block, in which a whole run happens."""
        asyncio.events._set_running_loop(self)
        thresholds = gc.get_threshold()
        gc.set_threshold(COLLECT_AFTER_OBJECTS)
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)
            try:
                self._end_all()
            finally:
                asyncio.events._set_running_loop(None)
                self._close_all()

    def begin(self, life: Life | None, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin a task that belongs to a process."""
        context = copy_context()
        context.run(_LIFE.set, life)
        task: asyncio.Task[_T] = self.create_task(work, context=context)
        task.add_done_callback(self._judge)
        return task

    def fail(self, error: BaseException) -> None:
        """End the run with an error, at the next `check`."""
        self._failed = self._failed or error

    def _end_all(self) -> None:
        """Let nothing of the run be left for the garbage collector to end somewhere else."""
        self._is_ending = True  # or timers would begin more tasks
        for _ in range(_ENDING_ROUNDS):
            if not self._tasks:
                return
            for task in list(self._tasks):
                task.cancel()
            for _ in range(_ENDING_EVENTS):
                with suppress(AssertionError):  # of a demand that comes after the end
                    self._timeline.step()

    def _close_all(self) -> None:
        """End what takes no cancellation, while no loop runs in which it could begin anything."""
        for task in list(self._tasks):
            coroutine = task.get_coro()
            if isinstance(coroutine, Coroutine):
                with suppress(Exception, asyncio.CancelledError):
                    coroutine.close()

    def _judge(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    def check(self) -> None:
        """Raise what a callback or a task has raised and no task awaited."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    # What asyncio asks of a loop

    def time(self) -> float:
        """Return the seconds since the run began."""
        return (self._timeline.now_ns - self._began_ns) / NS_PER_S

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Run a callback at this moment, after what is happening."""
        handle = asyncio.Handle(callback, args, self, context)
        self._timeline.soon(lambda: None if handle.cancelled() else handle._run())
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer, which the end of its process disarms."""
        context = context or copy_context()
        life = context.get(_LIFE)
        delay_ns = max(0, round(delay * NS_PER_S))
        when_ns = self._timeline.now_ns + delay_ns - self._began_ns
        handle = asyncio.TimerHandle(when_ns / NS_PER_S, callback, args, self, context)
        handle._scheduled = True  # type: ignore[attr-defined]

        def fire() -> None:
            del self._timers[handle]
            if not self._is_ending and (life is None or not life.ended):
                handle._run()

        self._timers[handle] = self._timeline.after(delay_ns, fire)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer by `time`."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        timer = self._timers.pop(handle, None)
        if timer is not None:
            timer.cancel()

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,  # noqa: ANN401 - a coroutine or a generator
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """Begin a task, which belongs to the process in whose context it is made."""
        life = (context or copy_context()).get(_LIFE)
        task: _Task[Any] = _Task(next(self._numbers), coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if life is not None:
            life.tasks[task] = None
            task.add_done_callback(lambda done: life.tasks.pop(done, None))
            if life.ended:
                task.cancel()
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """Run at once; the result arrives later, as that of a thread does."""
        del executor
        future: asyncio.Future[_T] = self.create_future()
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, func(*args))
        except Exception as error:  # noqa: BLE001 - the caller that awaits the thread gets it
            settle = partial(future.set_exception, error)
        delay_ns = int(_LONGEST_THREAD_NS * self._rng.random())
        self._timeline.after(delay_ns, lambda: None if future.done() else settle())
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what no task awaited, for `check`."""
        error = context.get("exception")
        self.fail(error or RuntimeError(context["message"]))

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return True: the loop has no other state."""
        return True

    def is_closed(self) -> bool:
        """Return False."""
        return False
