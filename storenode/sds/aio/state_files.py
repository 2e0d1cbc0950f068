"""State files of channels: a few threads for all of them, and a bound on those that are open.

A state is used by one thread at a time, in the order of the calls. One that has not been used for
the longest time is closed and opened again by its next transaction, which finds out whether
another process took it meanwhile: then nothing is written, and `StateTaken` is raised.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from storenode.common.errors import ArgumentError
from storenode.connection.arguments import check_kind
from storenode.sds.aio.limits import MAX_THREADS
from storenode.sds.aio.state import DurableState

_T = TypeVar("_T")
_P = ParamSpec("_P")


class StateFiles:
    """The threads of states, and the states that are open."""

    def __init__(self, max_open: int) -> None:
        check_kind("open_states", max_open, int, "a number of files")
        if max_open < 1:
            raise ArgumentError("at least one state must be open at a time")
        self._max_open = max_open
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="sds-states")
        self._lock = Lock()
        self._open: OrderedDict[StateThread, None] = OrderedDict()

    def run(self, work: Callable[[], None]) -> None:
        """Run a call in one of the threads."""
        self._threads.submit(work)

    def make_room(self, wanted: StateThread) -> None:
        """Close the states that were unused for longest, if too many are open."""
        with self._lock:
            self._open.pop(wanted, None)
            closing = []
            for each in tuple(self._open):
                if len(self._open) < self._max_open:
                    break
                if each.borrow():
                    del self._open[each]
                    closing.append(each)
            self._open[wanted] = None
        for each in closing:
            each.park()

    def forget(self, thread: StateThread) -> None:
        """Forget a state that is no longer used."""
        with self._lock:
            self._open.pop(thread, None)

    def close(self) -> None:
        """End the threads when they have done what was given to them."""
        self._threads.shutdown(wait=False)


class StateThread(Executor):
    """An executor that runs the calls for one state one after the other in the shared threads."""

    def __init__(self, state: DurableState, files: StateFiles) -> None:
        self._state = state
        self._files = files
        self._lock = Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._taken = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Submit a call, as `Executor.submit`."""
        future: Future[_T] = Future()
        with self._lock:
            self._waiting.append(lambda: _fulfil(future, lambda: fn(*args, **kwargs)))
            begin, self._taken = not self._taken, True
        if begin:
            self._files.run(self._run)
        return future

    def borrow(self) -> bool:
        """Stop running calls until `park`; return False while one is running."""
        with self._lock:
            free, self._taken = not self._taken, True
        return free

    def park(self) -> None:
        """Close the state, after `borrow`; what was submitted meanwhile runs then."""
        try:
            self._state.close()
        finally:
            with self._lock:
                self._taken = bool(self._waiting)
                again = self._taken
            if again:
                self._files.run(self._run)

    def _run(self) -> None:
        if not self._state.in_memory:
            self._files.make_room(self)
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._taken = bool(self._waiting)
            return self._waiting.popleft() if self._taken else None


def _fulfil(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - it belongs to who waits for the result
        future.set_exception(error)
    else:
        future.set_result(result)
