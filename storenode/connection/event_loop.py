"""Calls on an event loop in a background thread, for programs that have no event loop.

All blocking objects of a process share one loop.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from functools import cache, partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, cast

from storenode.common.errors import ArgumentError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_A = TypeVar("_A")
_W = TypeVar("_W")
_F = TypeVar("_F", bound=Callable[..., Any])
_ASYNCHRONOUS: Final = re.compile(r"\b(await|async) (?=\w+)|\bAsync(?=[A-Z])")
"""The words of a text that only an event loop needs, and the first part of names."""

MAX_SIGNAL_DELAY_S: Final = 0.5
"""The longest time until an interruption is raised that came just before the thread slept."""


@cache
def _loop_of(_process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop of all blocking objects of a process, in a thread that ends with it."""
    loop = asyncio.new_event_loop()
    # By default the loop lists every generator that has begun. Dropping one then runs a callback
    # in the program's thread, and Python swallows an interruption that comes in a callback. The
    # list is not needed: each generator is closed with its stream.
    loop.call_soon(partial(sys.set_asyncgen_hooks, firstiter=None))
    loop.set_task_factory(_unlisted_task)
    threading.Thread(target=loop.run_forever, name="storenode-client", daemon=True).start()
    return loop


def _unlisted_task(
    loop: asyncio.AbstractEventLoop,
    work: Any,  # noqa: ANN401 - of any result
    /,
    **options: Any,  # noqa: ANN401
) -> asyncio.Task[Any]:
    """Create a task that asyncio does not list.

    For the same reason: the program's thread may collect it as garbage, which runs a callback of
    the list. Source: Python's documentation, "Extending", "Task lifetime support".
    """
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    asyncio.tasks._unregister_task(task)
    return task


class _Call(Generic[_T]):
    """A call on the event loop, for the thread that waits for its end.

    An interruption may come between any two instructions of this thread. So it waits for a bare
    lock, since one of Python's own futures may be left locked, and the loop would stand still; and
    it holds no task, since asyncio forgets tasks in a callback that swallows an interruption. It
    also creates no coroutine, which would be left unawaited.
    """

    def __init__(self, function: Callable[[], Awaitable[_T]]) -> None:
        self._function = function
        self._cancel: Callable[[], object] | None = None
        self._ended = threading.Lock()
        self._ended.acquire()
        self._has_ended = False
        self._value: _T | None = None
        self._fault: BaseException | None = None

    def start(self) -> None:
        """Begin; called on the loop."""
        task = asyncio.get_running_loop().create_task(self._run())
        self._cancel = task.cancel
        task.add_done_callback(self._end)

    def stop(self) -> None:
        """Cancel the call, which may not have begun, or have ended; called on the loop."""
        if self._cancel is not None:
            self._cancel()
        else:
            self._finish(CancelledError())

    def wait(self) -> None:
        """Wait for the end; more than once does no harm.

        A signal that comes just before the thread sleeps does not wake it, so it sleeps in parts.
        """
        while not self._has_ended:
            self._ended.acquire(timeout=MAX_SIGNAL_DELAY_S)

    def result(self) -> _T:
        """Return the result, or raise the error."""
        if self._fault is not None:
            raise self._fault
        return cast("_T", self._value)

    async def _run(self) -> None:
        self._value = await self._function()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._cancel = bool  # a call that has ended cannot be cancelled
        self._finish(CancelledError() if task.cancelled() else task.exception())

    def _finish(self, fault: BaseException | None) -> None:
        self._fault, self._has_ended = fault, True
        self._ended.release()


def run_blocking(
    function: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Run an asynchronous function to its end.

    An interruption cancels it, and waits for its end once more. It raises `ArgumentError` in the
    thread of the event loop, which would wait for itself.
    """
    call, loop = _Call(partial(function, *args, **kwargs)), _loop_of(os.getpid())
    if asyncio._get_running_loop() is loop:
        raise ArgumentError("A callback of a result may not make a blocking call: use a thread.")
    try:
        loop.call_soon_threadsafe(call.start)
        call.wait()
    except BaseException:
        loop.call_soon_threadsafe(call.stop)
        call.wait()
        raise
    return call.result()


def call_on_loop(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function on the event loop, and return its result."""

    async def call() -> _T:
        return function(*args, **kwargs)

    return run_blocking(call)


def iterate_blocking(
    items: AsyncIterator[_T], close: Callable[[], Awaitable[None]]
) -> Iterator[_T]:
    """Yield what an asynchronous iterator yields, none of it None, and close it at the end."""
    try:
        while (item := run_blocking(anext, items, None)) is not None:
            yield item
    finally:
        close_blocking(close)


def close_blocking(close: Callable[[], Awaitable[None]]) -> None:
    """Run what closes an object to its end.

    The collector of garbage may call it in the loop's own thread, where it only begins.
    """
    if asyncio._get_running_loop() is (loop := _loop_of(os.getpid())):
        loop.call_soon(_Call(close).start)
    elif not sys.is_finalizing():  # then its thread does not run any more
        run_blocking(close)


def _like(call: Callable[..., object], method: _F) -> _F:
    """Return a method with name, text and signature of ``call``, less what a loop needs."""
    wraps(call)(method)
    method.__doc__ = _ASYNCHRONOUS.sub("", call.__doc__ or "") or None
    signature = inspect.signature(call)
    returned = str(signature.return_annotation).replace("AsyncGenerator", "Iterator")
    returned = _ASYNCHRONOUS.sub("", returned.replace(", None]", "]"))
    method.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    return method


def blocking(
    call: Callable[Concatenate[_A, _P], Awaitable[_T]],
) -> Callable[Concatenate[Any, _P], _T]:
    """Make a method that blocks of one of the asynchronous object, ``_asynchronous``."""

    def method(own: Any, /, *given: _P.args, **options: _P.kwargs) -> _T:  # noqa: ANN401 - any class
        return run_blocking(call, own._asynchronous, *given, **options)

    return _like(call, method)


def on_loop(
    call: Callable[Concatenate[_A, _P], _T], wrap: Callable[[_T], _W]
) -> Callable[Concatenate[Any, _P], _W]:
    """Make a method that calls one of the asynchronous object on the loop, and wraps its result."""

    def method(own: Any, /, *given: _P.args, **options: _P.kwargs) -> _W:  # noqa: ANN401 - any class
        return wrap(call_on_loop(call, own._asynchronous, *given, **options))

    return _like(call, method)


def iterating(
    call: Callable[Concatenate[_A, _P], AsyncGenerator[_T, None]],
) -> Callable[Concatenate[Any, _P], Iterator[_T]]:
    """Make a method that iterates over what one of the asynchronous object yields."""

    def method(own: Any, /, *given: _P.args, **options: _P.kwargs) -> Iterator[_T]:  # noqa: ANN401 - any class
        items = call(own._asynchronous, *given, **options)
        return iterate_blocking(items, items.aclose)

    return _like(call, method)
