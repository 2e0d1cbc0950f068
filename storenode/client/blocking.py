"""The client for programs without an event loop: the same calls, each of which blocks.

The calls run on one event loop in a background thread, which all clients of a process share.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cache, partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from storenode.client.asynchronous import (
    DEFAULT_TIMEOUT_S,
    PATIENT,
    AsyncAdmin,
    AsyncClient,
)
from storenode.client.message import Message, Page, Published
from storenode.client.publisher import DEFAULT_MAX_PENDING, AsyncPublisher
from storenode.client.retry import Retry
from storenode.client.streams import MessageStream as AsyncMessageStream
from storenode.connection.channel import TlsIdentity

_P = ParamSpec("_P")
_T = TypeVar("_T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all blocking clients, in a thread that ends with the process."""
    loop = asyncio.new_event_loop()
    # By default the loop lists every generator that has begun. Dropping one then runs a callback
    # in the program's thread, and Python swallows an interruption that comes in a callback. The
    # list is not needed: each generator is closed with its stream.
    loop.call_soon(partial(sys.set_asyncgen_hooks, firstiter=None))
    threading.Thread(target=loop.run_forever, name="storenode-client", daemon=True).start()
    return loop


class _Call(Generic[_T]):
    """A call on the event loop, for the thread that waits for its end.

    An interruption may come between any two instructions of this thread. So it waits for a bare
    lock, since one of Python's own futures may be left locked, and the loop would stand still; and
    it holds no task, since asyncio forgets tasks in a callback that swallows an interruption.
    """

    def __init__(self, call: Coroutine[Any, Any, _T]) -> None:
        self._call = call
        self._cancel: Callable[[], object] = call.close
        self._ended = threading.Lock()
        self._ended.acquire()
        self._outcome: Callable[[], _T] | None = None

    def start(self) -> None:
        """On the loop: begin."""
        task = asyncio.get_running_loop().create_task(self._call)
        self._cancel = task.cancel
        task.add_done_callback(self._end)

    def stop(self) -> None:
        """On the loop: cancel the call, which may not have begun, or have ended."""
        self._cancel()
        if self._cancel == self._call.close:
            self._tell(_raising(CancelledError()))

    def wait(self) -> None:
        """Wait for the end; more than once does no harm."""
        if self._outcome is None:
            self._ended.acquire()

    def result(self) -> _T:
        """What it came to."""
        assert self._outcome is not None
        return self._outcome()

    def _end(self, task: asyncio.Task[_T]) -> None:
        self._cancel = _nothing
        if task.cancelled():
            self._tell(_raising(CancelledError()))
        elif (fault := task.exception()) is not None:
            self._tell(_raising(fault))
        else:
            result = task.result()
            self._tell(lambda: result)

    def _tell(self, outcome: Callable[[], _T]) -> None:
        self._outcome = outcome
        self._ended.release()


def _nothing() -> None:
    """Cancel what has ended."""


def _raising(fault: BaseException) -> Callable[[], Any]:
    def outcome() -> None:
        raise fault

    return outcome


def _run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a call to its end; an interruption cancels it, and waits for its end once more."""
    call, loop = _Call(coroutine), _loop()
    try:
        loop.call_soon_threadsafe(call.start)
        call.wait()
    except BaseException:
        loop.call_soon_threadsafe(call.stop)
        call.wait()
        raise
    return call.result()


def _each(items: AsyncGenerator[_T]) -> Iterator[_T]:
    """What an asynchronous generator yields, none of it None; it is closed at the end."""

    async def following() -> _T | None:
        return await anext(items, None)

    try:
        while (item := _run(following())) is not None:
            yield item
    finally:
        _run(items.aclose())


async def _made(kind: Callable[..., _T], *arguments: Any, **options: Any) -> _T:  # noqa: ANN401 - of `kind`
    """Make something on the event loop that it belongs to."""
    return kind(*arguments, **options)


class _Closing(ABC):
    """A context manager; leaving the block closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End all calls."""


class MessageStream(_Closing, Iterator[Message]):
    """Messages of a scan or a follower, one by one, or in pages by `pages`.

    An iterator and context manager; leaving the block ends the call. `cursor`, `live` and `ack`
    are those of the asynchronous stream.
    """

    def __init__(self, stream: AsyncMessageStream) -> None:
        self._stream = stream
        self._pages = stream.pages()
        self._waiting: deque[Message] = deque()

    @property
    def cursor(self) -> bytes:
        """The cursor after all messages whose processing is over."""
        return self._stream.cursor

    @property
    def live(self) -> bool:
        """True if a follower has caught up with what the node holds."""
        return self._stream.live

    def __next__(self) -> Message:
        while not self._waiting:
            self._waiting.extend(self._next_page().messages)
        return self._waiting.popleft()

    def pages(self) -> Iterator[Page]:
        """Yield pages; `cursor` stands after a page when the next one is asked for."""
        with suppress(StopIteration):
            while True:
                yield self._next_page()

    def ack(self) -> None:
        """Keep the position after the pages whose messages have all been handed out."""
        _run(self._stream.acknowledge(is_finished=not self._waiting))

    def close(self) -> None:
        """End the call."""
        _run(self._close(is_finished=False))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _run(self._close(is_finished=kind is None and not self._waiting))

    def _next_page(self) -> Page:
        page = _run(self._next())
        if page is None:
            raise StopIteration
        return page

    async def _next(self) -> Page | None:
        return await anext(self._pages, None)

    async def _close(self, *, is_finished: bool) -> None:
        await self._pages.aclose()
        await self._stream.finish(is_finished=is_finished)


class Publisher:
    """Publishes messages in batches; made by `Client.publisher`, used as a context manager."""

    def __init__(self, publisher: AsyncPublisher) -> None:
        self._publisher = publisher

    @property
    def acknowledged(self) -> int:
        """Messages that the node has answered for, rejected ones included."""
        return self._publisher.acknowledged

    def send(self, message: Message) -> Future[Published]:
        """Hand a message over; blocks while too many are unacknowledged.

        The future need not be waited for. Raises as `AsyncPublisher.send` does.
        """
        return _run(self._send(message))

    def flush(self) -> None:
        """Wait until everything that was handed over is acknowledged."""
        _run(self._publisher.flush())

    def __enter__(self) -> Self:
        _run(self._publisher.__aenter__())
        return self

    def __exit__(self, *raised: Any) -> None:  # noqa: ANN401 - what the publisher takes
        _run(self._publisher.__aexit__(*raised))

    async def _send(self, message: Message) -> Future[Published]:
        answer = await self._publisher.send(message)
        told: Future[Published] = Future()

        def tell(done: asyncio.Future[Published]) -> None:
            if done.cancelled():
                told.cancel()
            elif (fault := done.exception()) is not None:
                told.set_exception(fault)
            else:
                told.set_result(done.result())

        answer.add_done_callback(tell)
        return told


_A = TypeVar("_A", AsyncClient, AsyncAdmin)


class _Blocking(_Closing, Generic[_A]):
    """A client whose calls an asynchronous one makes; a context manager."""

    _asynchronous: _A

    def close(self) -> None:
        """End all calls and connections."""
        _run(self._asynchronous.aclose())

    def __repr__(self) -> str:
        return repr(self._asynchronous).removeprefix("Async")


def _blocking(
    call: Callable[Concatenate[_A, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[_Blocking[_A], _P], _T]:
    @wraps(call)
    def blocking(client: _Blocking[_A], /, *given: _P.args, **options: _P.kwargs) -> _T:
        return _run(call(client._asynchronous, *given, **options))

    return blocking


def _iterating(
    call: Callable[Concatenate[_A, _P], AsyncGenerator[_T]],
) -> Callable[Concatenate[_Blocking[_A], _P], Iterator[_T]]:
    @wraps(call)
    def blocking(client: _Blocking[_A], /, *given: _P.args, **options: _P.kwargs) -> Iterator[_T]:
        return _each(call(client._asynchronous, *given, **options))

    return blocking


def _streaming(
    call: Callable[Concatenate[_A, _P], AsyncMessageStream],
) -> Callable[Concatenate[_Blocking[_A], _P], MessageStream]:
    @wraps(call)
    def blocking(client: _Blocking[_A], /, *given: _P.args, **options: _P.kwargs) -> MessageStream:
        return MessageStream(call(client._asynchronous, *given, **options))

    return blocking


class Client(_Blocking[AsyncClient]):
    """A blocking client of one store node, or of several that hold the same messages.

    Its calls are those of `AsyncClient`, with the same names and arguments; each blocks until its
    result is there, and what that one iterates over asynchronously is a common iterator here.
    Clients may be used from any thread.

    Examples:
        ```python
        with Client("127.0.0.1:7420") as client:
            client.publish(Message(b"hello", "/my-app/1/chat/proto"))
            for message in client.scan("/my-app/1/chat/proto"):
                print(message.time, message.payload)
        ```
    """

    def __init__(
        self,
        nodes: str | Sequence[str],
        *,
        token: str | None = None,
        tls: TlsIdentity | None = None,
        retry: Retry = PATIENT,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        made = _made(AsyncClient, nodes, token=token, tls=tls, retry=retry, timeout_s=timeout_s)
        self._asynchronous = _run(made)

    def publisher(
        self,
        *,
        min_confirms: int = 0,
        confirm_timeout_s: float | None = None,
        max_pending: int = DEFAULT_MAX_PENDING,
        strict: bool = True,
    ) -> Publisher:
        """Make a publisher for many messages, as `AsyncClient.publisher`."""
        made = _made(
            self._asynchronous.publisher,
            min_confirms=min_confirms,
            confirm_timeout_s=confirm_timeout_s,
            max_pending=max_pending,
            strict=strict,
        )
        return Publisher(_run(made))

    publish = _blocking(AsyncClient.publish)
    publish_many = _blocking(AsyncClient.publish_many)
    get = _blocking(AsyncClient.get)
    query = _blocking(AsyncClient.query)
    scan = _streaming(AsyncClient.scan)
    scan_hashes = _iterating(AsyncClient.scan_hashes)
    coverage = _iterating(AsyncClient.coverage)
    follow = _streaming(AsyncClient.follow)
    get_sds = _blocking(AsyncClient.get_sds)
    causal_history = _blocking(AsyncClient.causal_history)


class Admin(_Blocking[AsyncAdmin]):
    """A blocking client of a node's admin listener; its calls are those of `AsyncAdmin`.

    Examples:
        ```python
        with Admin("127.0.0.1:7421") as admin:
            print(admin.status().messages)
        ```
    """

    def __init__(
        self,
        node: str,
        *,
        token: str | None = None,
        tls: TlsIdentity | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        made = _made(AsyncAdmin, node, token=token, tls=tls, timeout_s=timeout_s)
        self._asynchronous = _run(made)

    status = _blocking(AsyncAdmin.status)
    synchronize = _blocking(AsyncAdmin.synchronize)
    fetch_messages = _blocking(AsyncAdmin.fetch_messages)
