"""The client for programs without an event loop: the same calls, each of which blocks.

The calls run on one event loop in a background thread, which all clients of a process share.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from storenode.client.asynchronous import (
    DEFAULT_TIMEOUT_S,
    PATIENT,
    AsyncAdmin,
    AsyncClient,
    Topics,
)
from storenode.client.message import Message, Page, Published, Time
from storenode.client.publisher import DEFAULT_MAX_PENDING, AsyncPublisher
from storenode.client.retry import Retry
from storenode.client.streams import MessageStream as AsyncMessageStream
from storenode.connection.channel import TlsIdentity

_T = TypeVar("_T")
_P = ParamSpec("_P")
_C = TypeVar("_C", bound=Callable[..., Any])


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all blocking clients, in a thread that ends with the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="storenode-client", daemon=True).start()
    return loop


def _run(call: Coroutine[Any, Any, _T]) -> _T:
    """Run a call to its end; an interruption cancels it."""
    future = asyncio.run_coroutine_threadsafe(call, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _made(kind: Callable[..., _T], *arguments: Any, **options: Any) -> _T:  # noqa: ANN401 - of `kind`
    """Make something on the event loop that it belongs to."""
    return kind(*arguments, **options)


class MessageStream(Iterator[Message]):
    """Messages of a scan or a follower, one by one, or in pages by `pages`.

    An iterator and context manager; leaving the block ends the call. `cursor` and `live` are those
    of the asynchronous stream.
    """

    def __init__(self, stream: AsyncMessageStream) -> None:
        self._stream = stream
        self._pages = stream.pages()
        self._waiting: deque[Message] = deque()

    @property
    def cursor(self) -> bytes:
        """Continues after all messages whose processing is over; keep it with what is processed."""
        return self._stream.cursor

    @property
    def live(self) -> bool:
        """Whether a follower has caught up with what the node holds."""
        return self._stream.live

    def __next__(self) -> Message:
        while not self._waiting:
            self._waiting.extend(self._next_page().messages)
        return self._waiting.popleft()

    def pages(self) -> Iterator[Page]:
        """The same in pages; `cursor` stands after a page when the next one is asked for."""
        with suppress(StopIteration):
            while True:
                yield self._next_page()

    def close(self) -> None:
        """End the call."""
        _run(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_page(self) -> Page:
        page = _run(self._next())
        if page is None:
            raise StopIteration
        return page

    async def _next(self) -> Page | None:
        return await anext(self._pages, None)

    async def _close(self) -> None:
        await self._pages.aclose()
        await self._stream.aclose()


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _run(self._publisher.__aexit__(kind, error, traceback))

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


class _Closing:
    """What wraps an asynchronous client, and closes it at the end of a `with` block."""

    _asynchronous: AsyncClient | AsyncAdmin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all calls and connections."""
        _run(self._asynchronous.aclose())


def _blocking(
    call: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[Any, _P], _T]:
    """The method of a blocking client that makes a call of the asynchronous one."""

    @wraps(call)
    def method(self: Any, /, *args: _P.args, **options: _P.kwargs) -> _T:  # noqa: ANN401
        return _run(call(self._asynchronous, *args, **options))

    return _documented(method, call)


def _streaming(
    call: Callable[Concatenate[Any, _P], AsyncMessageStream],
) -> Callable[Concatenate[Any, _P], MessageStream]:
    """The method of a blocking client that opens a stream of the asynchronous one."""

    @wraps(call)
    def method(self: Any, /, *args: _P.args, **options: _P.kwargs) -> MessageStream:  # noqa: ANN401
        return MessageStream(call(self._asynchronous, *args, **options))

    return _documented(method, call)


def _documented(method: _C, call: Callable[..., object]) -> _C:
    """Describe a method by its counterpart, whose examples have an `await` too many."""
    summary = (call.__doc__ or "").partition("\n")[0]
    method.__doc__ = f"{summary}\n\nAs `{call.__qualname__}`, but blocking."
    return method


class Client(_Closing):
    """A blocking client of one store node, or of several that hold the same messages.

    Everything is as in `AsyncClient`, with the same names and arguments. Clients may be used from
    any thread.

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
        self._asynchronous: AsyncClient = _run(made)

    publish = _blocking(AsyncClient.publish)
    """Publish one message, as `AsyncClient.publish`."""

    publish_many = _blocking(AsyncClient.publish_many)
    """Publish messages in batches, as `AsyncClient.publish_many`."""

    get = _blocking(AsyncClient.get)
    """Look messages up by their hashes, as `AsyncClient.get`."""

    query = _blocking(AsyncClient.query)
    """Fetch one page, as `AsyncClient.query`."""

    get_sds = _blocking(AsyncClient.get_sds)
    """Look SDS messages up by message ID, as `AsyncClient.get_sds`."""

    causal_history = _blocking(AsyncClient.causal_history)
    """Fetch SDS messages with all that they depend on, as `AsyncClient.causal_history`."""

    scan = _streaming(AsyncClient.scan)
    """Read a time range, the oldest message first, as `AsyncClient.scan`."""

    follow = _streaming(AsyncClient.follow)
    """Receive messages as they are stored, as `AsyncClient.follow`."""

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

    def scan_hashes(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
    ) -> Iterator[bytes]:
        """Read the hashes of a time range, as `AsyncClient.scan_hashes`."""
        hashes = self._asynchronous.scan_hashes(
            content_topics, pubsub_topic=pubsub_topic, start=start, end=end
        )

        async def following() -> bytes | None:
            return await anext(hashes, None)

        try:
            while (digest := _run(following())) is not None:
                yield digest
        finally:
            _run(hashes.aclose())


class Admin(_Closing):
    """A blocking client of a node's admin listener, as `AsyncAdmin`.

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
        self._asynchronous: AsyncAdmin = _run(made)

    status = _blocking(AsyncAdmin.status)
    """What the node holds, whether it serves, and its peers, as `AsyncAdmin.status`."""

    synchronize = _blocking(AsyncAdmin.synchronize)
    """Have the node reconcile with a peer now, as `AsyncAdmin.synchronize`."""

    fetch_messages = _blocking(AsyncAdmin.fetch_messages)
    """Have the node fetch some SDS messages from a peer, as `AsyncAdmin.fetch_messages`."""
