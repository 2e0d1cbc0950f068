"""State files of channels: a few threads for all of them, and a bound on those that are open.

A state belongs to one thread. One that has not been used for the longest time is closed and opened
again by its next transaction, which finds out whether another process took it meanwhile: then
nothing is written, and `StateTaken` is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import cycle
from typing import ParamSpec, TypeVar

from storenode.common.errors import ArgumentError
from storenode.connection.arguments import check_kind
from storenode.sds.aio.limits import MAX_THREADS
from storenode.sds.aio.state import SqliteState

_T = TypeVar("_T")
_P = ParamSpec("_P")


class _Worker:
    """A thread, and the states that it has open, the one used last at the end."""

    def __init__(self, max_open: int) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="sds-states")
        self._max_open = max_open
        self._open: dict[SqliteState, None] = {}

    def use(self, state: SqliteState) -> None:
        """Note the use of a state, after closing those that were unused for longest."""
        self.forget(state)
        while len(self._open) >= self._max_open:
            oldest = next(iter(self._open))
            self.forget(oldest)
            oldest.close()
        self._open[state] = None

    def forget(self, state: SqliteState) -> None:
        """Forget a state that is closed."""
        self._open.pop(state, None)


class StateThread(Executor):
    """An executor that runs the calls for one state one after the other, in its thread."""

    def __init__(self, state: SqliteState, worker: _Worker) -> None:
        self._state = state
        self._worker = worker

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Submit a call, as `Executor.submit`."""
        return self._worker.thread.submit(self._run, lambda: fn(*args, **kwargs))

    def forget(self) -> None:
        """Forget the state, which is used no longer."""
        self._worker.thread.submit(self._worker.forget, self._state)

    def _run(self, call: Callable[[], _T]) -> _T:
        if not self._state.in_memory:
            self._worker.use(self._state)
        return call()


class StateFiles:
    """The threads of states, each of which has its part of the open ones."""

    def __init__(self, max_open: int) -> None:
        check_kind("open_states", max_open, int, "a number of files")
        if max_open < 1:
            raise ArgumentError("at least one state must be open at a time")
        count = min(MAX_THREADS, max_open)
        self._workers = [_Worker(max_open // count) for _ in range(count)]
        self._next = cycle(self._workers)

    def thread(self, state: SqliteState) -> StateThread:
        """Assign a thread to a state."""
        return StateThread(state, next(self._next))

    def close(self) -> None:
        """End the threads when they have done what was given to them."""
        for worker in self._workers:
            worker.thread.shutdown(wait=False)
