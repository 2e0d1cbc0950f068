"""The client for programs without an event loop: the same calls, each of which blocks.

The calls run on one event loop in a background thread, which all clients of a process share.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from storenode.client.asynchronous import (
    DEFAULT_TIMEOUT_S,
    PATIENT,
    AsyncAdmin,
    AsyncClient,
    SdsId,
    Topics,
)
from storenode.client.message import Message, Page, Published, SdsResult, Time
from storenode.client.publisher import DEFAULT_MAX_PENDING, AsyncPublisher
from storenode.client.retry import Retry
from storenode.client.streams import MessageStream as AsyncMessageStream
from storenode.connection.channel import TlsIdentity
from storenode.wire.storenode.v1.admin_pb2 import FetchReport, NodeStatus, SyncReport
from storenode.wire.storenode.v1.store_pb2 import CoverageStep

_T = TypeVar("_T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all blocking clients, in a thread that ends with the process."""
    loop = asyncio.new_event_loop()
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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


class Client:
    """A blocking client of one store node, or of several that hold the same messages.

    Everything is as in `AsyncClient`, with the same names. Clients may be used from any thread.

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
        self._client = _run(made)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all calls and connections."""
        _run(self._client.aclose())

    def publish(
        self,
        message: Message,
        *,
        min_confirms: int = 0,
        confirm_timeout_s: float | None = None,
    ) -> Published:
        """Publish one message, as `AsyncClient.publish`."""
        return _run(
            self._client.publish(
                message, min_confirms=min_confirms, confirm_timeout_s=confirm_timeout_s
            )
        )

    def publish_many(
        self,
        messages: Iterable[Message],
        *,
        min_confirms: int = 0,
        confirm_timeout_s: float | None = None,
    ) -> list[Published]:
        """Publish messages in batches, as `AsyncClient.publish_many`."""
        return _run(
            self._client.publish_many(
                messages, min_confirms=min_confirms, confirm_timeout_s=confirm_timeout_s
            )
        )

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
            self._client.publisher,
            min_confirms=min_confirms,
            confirm_timeout_s=confirm_timeout_s,
            max_pending=max_pending,
            strict=strict,
        )
        return Publisher(_run(made))

    def get(self, hashes: Iterable[bytes]) -> dict[bytes, Message]:
        """Look messages up by their hashes, as `AsyncClient.get`."""
        return _run(self._client.get(hashes))

    def query(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
        limit: int | None = None,
        newest_first: bool = True,
        cursor: bytes | None = None,
        coverage: bool = False,
    ) -> Page:
        """Fetch one page, as `AsyncClient.query`."""
        return _run(
            self._client.query(
                content_topics,
                pubsub_topic=pubsub_topic,
                start=start,
                end=end,
                limit=limit,
                newest_first=newest_first,
                cursor=cursor,
                coverage=coverage,
            )
        )

    def scan(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
        cursor: bytes = b"",
        page_size: int = 0,
        coverage: bool = False,
    ) -> MessageStream:
        """Read a time range, the oldest message first, as `AsyncClient.scan`."""
        return MessageStream(
            self._client.scan(
                content_topics,
                pubsub_topic=pubsub_topic,
                start=start,
                end=end,
                cursor=cursor,
                page_size=page_size,
                coverage=coverage,
            )
        )

    def scan_hashes(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
    ) -> Iterator[bytes]:
        """Read the hashes of a time range, as `AsyncClient.scan_hashes`."""
        yield from _each(
            self._client.scan_hashes(
                content_topics, pubsub_topic=pubsub_topic, start=start, end=end
            )
        )

    def coverage(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
        by_day: bool = False,
        channel_id: str = "",
    ) -> Iterator[CoverageStep]:
        """Read what is held and which stores are equal, as `AsyncClient.coverage`."""
        yield from _each(
            self._client.coverage(
                content_topics,
                pubsub_topic=pubsub_topic,
                start=start,
                end=end,
                by_day=by_day,
                channel_id=channel_id,
            )
        )

    def follow(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        cursor: bytes = b"",
        from_beginning: bool = False,
        overlap_s: float | None = None,
    ) -> MessageStream:
        """Receive messages as they are stored, as `AsyncClient.follow`."""
        return MessageStream(
            self._client.follow(
                content_topics,
                pubsub_topic=pubsub_topic,
                cursor=cursor,
                from_beginning=from_beginning,
                overlap_s=overlap_s,
            )
        )

    def get_sds(
        self,
        channel_id: str,
        ids: Iterable[SdsId],
        *,
        pubsub_topic: str | None = None,
        content_topics: Topics = (),
        coverage: bool = False,
    ) -> SdsResult:
        """Look SDS messages up by message ID, as `AsyncClient.get_sds`."""
        return _run(
            self._client.get_sds(
                channel_id,
                ids,
                pubsub_topic=pubsub_topic,
                content_topics=content_topics,
                coverage=coverage,
            )
        )

    def causal_history(
        self,
        channel_id: str,
        heads: Iterable[SdsId],
        *,
        known_ids: Iterable[str] = (),
        max_messages: int = 0,
        max_depth: int = 0,
        pubsub_topic: str | None = None,
        content_topics: Topics = (),
        coverage: bool = False,
    ) -> SdsResult:
        """Fetch SDS messages with all that they depend on, as `AsyncClient.causal_history`."""
        return _run(
            self._client.causal_history(
                channel_id,
                heads,
                known_ids=known_ids,
                max_messages=max_messages,
                max_depth=max_depth,
                pubsub_topic=pubsub_topic,
                content_topics=content_topics,
                coverage=coverage,
            )
        )


class Admin:
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
        self._admin = _run(_made(AsyncAdmin, node, token=token, tls=tls, timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all calls and the connection."""
        _run(self._admin.aclose())

    def status(self) -> NodeStatus:
        """What the node holds, whether it serves, and how it stands with its peers."""
        return _run(self._admin.status())

    def synchronize(
        self, peer: str = "", *, start: Time | None = None, end: Time | None = None
    ) -> SyncReport:
        """Have the node reconcile with a peer now, as `AsyncAdmin.synchronize`."""
        return _run(self._admin.synchronize(peer, start=start, end=end))

    def fetch_messages(self, peer: str, channel_id: str, ids: Iterable[SdsId]) -> FetchReport:
        """Have the node fetch some SDS messages from a peer, as `AsyncAdmin.fetch_messages`."""
        return _run(self._admin.fetch_messages(peer, channel_id, ids))
